//! The daemon's answers to its commands.

use crate::servers::{Server, Servers};
use std::thread;
use std::time::{Duration, Instant};

const HANG_DELAY: Duration = Duration::from_hours(24);

/// The result of a command.
#[derive(Debug, PartialEq)]
pub enum Done {
    /// The text that the client gets.
    Answer(String),
    /// The daemon ends once its clients have ended, or after this time.
    Quit { within: Duration },
}

pub fn answer(servers: &mut Servers, line: &str) -> Done {
    let words: Vec<&str> = line.split_whitespace().collect();
    Done::Answer(match words[..] {
        ["get_server_list"] => lines(servers.all.keys()),
        ["start_server", "-uid", _] => {
            servers.start();
            String::new()
        }
        ["get_default_active_thread_percentage"] => servers.defaults.threads_text(),
        ["set_default_active_thread_percentage", percent] => servers.defaults.set_threads(percent),
        ["get_default_device_pinned_mem_limit", "0"] => servers.defaults.memory_text(),
        ["set_default_device_pinned_mem_limit", "0", limit] => {
            servers.defaults.set_memory(limit);
            String::new()
        }
        [word, device, ref limit @ ..] if of_another_device(word, device) => {
            let limits = servers.of_other_devices.entry(device.to_owned()).or_default();
            match (word, limit) {
                ("get_default_device_pinned_mem_limit", []) => limits.memory_text(),
                ("set_default_device_pinned_mem_limit", [limit]) => {
                    limits.set_memory(limit);
                    String::new()
                }
                _ => unknown(line),
            }
        }
        ["quit"] => return Done::Quit { within: HANG_DELAY },
        ["quit", "-t", seconds] => {
            return Done::Quit { within: Duration::from_secs(seconds.parse().unwrap_or_default()) };
        }
        [word, server, ref arguments @ ..] if of_server(word) => {
            let own = server.parse().unwrap_or_default();
            if !servers.all.contains_key(&own) {
                return Done::Answer(format!("Server {server} not found\n"));
            }
            answer_of_server(servers, own, word, arguments).unwrap_or_else(|| unknown(line))
        }
        _ => unknown(line),
    })
}

fn of_server(word: &str) -> bool {
    [
        "get_server_status",
        "get_client_list",
        "get_active_thread_percentage",
        "set_active_thread_percentage",
        "get_device_pinned_mem_limit",
        "set_device_pinned_mem_limit",
        "terminate_client",
        "shutdown_server",
    ]
    .contains(&word)
}

/// Whether the command sets or reads a default limit of a GPU other than the daemon's first. Clients never
/// get these limits here.
fn of_another_device(word: &str, device: &str) -> bool {
    word.ends_with("_default_device_pinned_mem_limit") && device.parse::<u32>().is_ok_and(|device| device > 0)
}

fn unknown(line: &str) -> String {
    format!("Unknown command \"{line}\"\n")
}

fn lines<'a>(ids: impl Iterator<Item = &'a u32>) -> String {
    ids.flat_map(|id| [id.to_string(), "\n".to_owned()]).collect()
}

fn answer_of_server(servers: &mut Servers, own: u32, word: &str, arguments: &[&str]) -> Option<String> {
    match (word, arguments) {
        ("terminate_client", [client]) => {
            let known = servers.terminate(own, client.parse().ok()?);
            return Some(if known { "0\n".to_owned() } else { format!("Invalid process {client}!\n1\n") });
        }
        ("shutdown_server", ["-f"]) => {
            servers.shut_down(own);
            return Some(String::new());
        }
        _ => {}
    }
    let server = servers.all.get_mut(&own)?;
    // The daemon has one thread and asks the server, so it blocks until the server is ready.
    thread::sleep(server.ready_at.saturating_duration_since(Instant::now()));
    Some(match (word, arguments) {
        ("get_server_status", []) => status(server).to_owned(),
        ("get_client_list", []) => lines(server.clients.iter()),
        ("get_active_thread_percentage", []) => server.limits.threads_text(),
        ("set_active_thread_percentage", [percent]) => server.limits.set_threads(percent),
        ("get_device_pinned_mem_limit", ["0"]) => server.limits.memory_text(),
        ("set_device_pinned_mem_limit", ["0", limit]) => {
            server.limits.set_memory(limit);
            String::new()
        }
        _ => return None,
    })
}

fn status(server: &Server) -> &'static str {
    // A server that is being shut down reports FAULT too.
    if server.fault.is_some() || server.ends_at.is_some() { "FAULT\n" } else { "ACTIVE\n" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(servers: &mut Servers, line: &str) -> String {
        match answer(servers, line) {
            Done::Answer(text) => text,
            Done::Quit { within } => format!("quit {within:?}"),
        }
    }

    #[test]
    fn answers_are_those_of_the_real_one() {
        let mut servers = Servers::new();
        let own = std::process::id() * 10 + 1;
        for (line, text) in [
            ("get_server_list", String::new()),
            ("get_default_active_thread_percentage", "100.0\n".to_owned()),
            ("get_default_device_pinned_mem_limit 0", String::new()),
            ("set_default_device_pinned_mem_limit 0 10240M", String::new()),
            ("set_default_active_thread_percentage 14", "14.0\n".to_owned()),
            ("start_server -uid 0", String::new()),
            ("start_server -uid 0", String::new()),
            ("get_server_list", format!("{own}\n")),
            ("get_server_status OWN", "ACTIVE\n".to_owned()),
            ("get_device_pinned_mem_limit OWN 0", "10G\n".to_owned()),
            ("set_device_pinned_mem_limit OWN 0 1000M", String::new()),
            ("get_device_pinned_mem_limit OWN 0", "1000M\n".to_owned()),
            ("set_active_thread_percentage OWN 25", "25.0\n".to_owned()),
            ("get_active_thread_percentage OWN", "25.0\n".to_owned()),
            ("get_client_list OWN", String::new()),
            ("terminate_client OWN 99999", "Invalid process 99999!\n1\n".to_owned()),
            ("get_server_status 999", "Server 999 not found\n".to_owned()),
            ("nonsense", "Unknown command \"nonsense\"\n".to_owned()),
            ("shutdown_server OWN -f", String::new()),
            ("get_server_status OWN", "FAULT\n".to_owned()),
            ("quit", "quit 86400s".to_owned()),
            ("quit -t 2", "quit 2s".to_owned()),
        ] {
            assert_eq!(said(&mut servers, &line.replace("OWN", &own.to_string())), text, "{line}");
        }
    }
}
