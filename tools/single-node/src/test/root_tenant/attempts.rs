//! The attempts of the tenants: the table for `tenant.py`, and for docs/isolation.md.

#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// The function of `attempts.py` or `attempts_cuda.py` that implements it.
    pub name: &'static str,
    /// Description for the test's output.
    pub tries: &'static str,
    /// Whether only the GPU's exclusive mode prevents it.
    pub needs_exclusive: bool,
}

const fn attempt(name: &'static str, tries: &'static str) -> Attempt {
    Attempt { name, tries, needs_exclusive: false }
}

/// All attempts, in the order in which they are made.
pub const ATTEMPTS: [Attempt; 31] = [
    attempt("set_default_limits", "set the daemon's default limits by the control program"),
    attempt("set_server_limits", "set the server's limits"),
    attempt("terminate_clients", "end the neighbour's work (terminate_client)"),
    attempt("shut_down_server", "shut the server down"),
    attempt("quit_daemon", "end the daemon (quit -t 1)"),
    attempt("quit_as_another_user", "the same as other users of the container (setuid)"),
    attempt("quit_from_nested_namespace", "the same as root of a further user namespace"),
    attempt(
        "forge_credentials",
        "the same by hand on each socket, with root's credentials (SCM_CREDENTIALS)",
    ),
    attempt("hold_connections", "hold 64 silent connections to each socket"),
    attempt(
        "keep_daemon_busy",
        "hold a connection to each socket and say words without end for three seconds",
    ),
    attempt("send_garbage", "send zeros, long lines and random bytes to each socket"),
    attempt("write_pipe_files", "write the pipe folder's files, create files, listen on a socket there"),
    attempt("remove_pipe_files", "unlink, rename and replace the pipe folder's files"),
    attempt("change_modes", "chmod, chown, utime and setxattr them"),
    attempt("remount_pipe", "remount the pipe folder read-write, and all of that again"),
    attempt("remount_from_nested_namespace", "the same as root of a further user namespace"),
    attempt("link_tricks", "symbolic and hard links, a bind mount over it, .. out of it"),
    attempt("lock_files", "hold locks and leases on the pipe folder's files"),
    attempt("write_node_files", "write CDI files, the agent's and kubelet's; connect to their sockets"),
    attempt("fill_shared_memory", "fill /dev/shm, enlarge it, find others' files there"),
    attempt("open_other_gpus", "open other GPUs' device files, make device files (mknod)"),
    attempt("mount_the_host", "mount disks and the kernel's file systems"),
    attempt("trace_and_kill", "kill, trace, read and renice the neighbour, the server and the daemon"),
    attempt("read_other_processes", "read their /proc, open the kernel's settings for writing"),
    attempt("join_namespaces", "join the host's namespaces"),
    attempt("set_gpu_modes", "set the GPU's modes through NVML (to what they are)"),
    attempt("allocate_past_limit", "allocate past its own limit"),
    attempt("raise_limits_by_environment", "the same with the limits' variables raised, and without them"),
    attempt("search_for_others_data", "look in fresh GPU memory for what the neighbour wrote"),
    attempt("many_clients", "16 CUDA clients at once"),
    Attempt {
        name: "leave_the_daemon",
        tries: "use the GPU beside the daemon (CUDA_MPS_PIPE_DIRECTORY=/nowhere)",
        needs_exclusive: true,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_is_a_function_of_the_tenants_programs_and_each_such_function_an_attempt() {
        let programs = [include_str!("../../attempts.py"), include_str!("../../attempts_cuda.py")].join("\n");
        let functions = programs.lines().filter_map(|line| {
            let (name, _) = line.strip_prefix("def ")?.split_once("(facts, notes):")?;
            Some(name)
        });
        let mut functions: Vec<&str> = functions.collect();
        let mut named = ATTEMPTS.map(|attempt| attempt.name);
        functions.sort_unstable();
        named.sort_unstable();
        assert_eq!(functions, named);
    }
}
