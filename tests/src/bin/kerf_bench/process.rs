//! What a process costs, by `/proc/<pid>`.

use anyhow::Context as _;

/// The process's user and system time: fields 14 and 15 of `/proc/<pid>/stat` (proc(5)), counted after the name in brackets.
pub fn cpu_ticks(pid: u32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = text.rsplit_once(')').context("no name in stat")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let field = |n: usize| anyhow::Ok(fields.get(n - 3).context("stat is short")?.parse::<u64>()?);
    Ok(field(14)? + field(15)?)
}

/// The memory that is in RAM, MiB: its own and the files that it has mapped.
pub fn resident_mib(pid: u32) -> anyhow::Result<f64> {
    status_mib(pid, "VmRSS:")
}

/// The most that it ever had in RAM, MiB.
pub fn peak_mib(pid: u32) -> anyhow::Result<f64> {
    status_mib(pid, "VmHWM:")
}

fn status_mib(pid: u32, field: &str) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)).context("the field is not there")?;
    let kib: u32 = line.split_whitespace().next().context("the field is empty")?.parse()?;
    Ok(f64::from(kib) / 1024.0)
}
