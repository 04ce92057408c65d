//! The CPU time and memory of a process, from `/proc/<pid>`.

use anyhow::Context as _;

/// User and system time in clock ticks: fields 14 and 15 of `/proc/<pid>/stat` (proc(5)). Fields are counted
/// after the name in brackets, because the name may contain spaces.
pub fn cpu_ticks(pid: u32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = text.rsplit_once(')').context("no name in stat")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let field = |n: usize| anyhow::Ok(fields.get(n - 3).context("stat is short")?.parse::<u64>()?);
    Ok(field(14)? + field(15)?)
}

/// Resident memory in MiB, including mapped files.
pub fn resident_mib(pid: u32) -> anyhow::Result<f64> {
    status_mib(pid, "VmRSS:")
}

/// The largest resident memory so far, in MiB.
pub fn peak_mib(pid: u32) -> anyhow::Result<f64> {
    status_mib(pid, "VmHWM:")
}

fn status_mib(pid: u32, field: &str) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)).context("the field is not there")?;
    let kib: u32 = line.split_whitespace().next().context("the field is empty")?.parse()?;
    Ok(f64::from(kib) / 1024.0)
}
