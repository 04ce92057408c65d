//! One thread forks every child and lives as long as the process. The kernel sends a child its parent death
//! signal when the thread that forked it ends, and test threads and tokio workers end early.

use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

type Order = (Command, Sender<io::Result<Child>>);

static ORDERS: OnceLock<Sender<Order>> = OnceLock::new();

/// Spawns the command on the long-lived thread.
pub fn spawn(command: Command) -> io::Result<Child> {
    let orders = ORDERS.get_or_init(start);
    let (reply, answer) = channel();
    orders.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

fn gone() -> io::Error {
    io::Error::other("the thread that starts children has ended")
}

/// Starts the thread. It ends only with the process, because a static holds the sender of its orders.
fn start() -> Sender<Order> {
    let (sender, orders) = channel::<Order>();
    thread::spawn(move || {
        for (mut command, reply) in orders {
            // A caller that no longer waits loses its Child. Dropping it here leaves the process to the
            // parent death signal.
            let _ = reply.send(command.spawn());
        }
    });
    sender
}
