//! Decides whose commands the daemon accepts: those of root and of the daemon's own user, by the socket's
//! peer credentials. The real one (driver 580) refuses uid 1000 and the root of a user namespace, whose user
//! outside is another.

use anyhow::Context as _;
use std::os::unix::net::UnixStream;

/// The answer to any other user.
pub const REFUSAL: &str = "Insufficient privileges\n";

/// Whether the daemon accepts commands from this peer.
pub fn is_obeyed(stream: &UnixStream) -> anyhow::Result<bool> {
    let peer = user_of(stream).context("failed to read the peer's user")?;
    Ok(obeys(peer, rustix::process::geteuid().as_raw()))
}

fn obeys(peer: u32, own: u32) -> bool {
    peer == 0 || peer == own
}

/// The peer's user id. It takes tokio, because the standard library cannot read it yet.
fn user_of(stream: &UnixStream) -> anyhow::Result<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    let other = stream.try_clone()?;
    other.set_nonblocking(true)?;
    let user = tokio::net::UnixStream::from_std(other)?.peer_cred()?.uid();
    // Both handles share one file description, so the original became nonblocking too.
    stream.set_nonblocking(false)?;
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn root_and_the_daemons_own_user_are_obeyed() {
        for (peer, own, obeyed) in
            [(0, 0, true), (1000, 0, false), (100_000, 0, false), (0, 7, true), (7, 7, true), (8, 7, false)]
        {
            assert_eq!(obeys(peer, own), obeyed, "{peer} by a daemon of {own}");
        }
    }

    #[test]
    fn the_kernel_identifies_the_peer_and_the_socket_still_waits() {
        let (mut one, other) = UnixStream::pair().unwrap();
        assert_eq!(user_of(&one).unwrap(), rustix::process::geteuid().as_raw());
        drop(other);
        assert_eq!(one.read(&mut [0]).unwrap(), 0);
    }
}
