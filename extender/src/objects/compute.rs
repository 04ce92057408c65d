//! CPU and memory of pods and nodes, as far as they influence the choice of a node for a share of a GPU.

use kerf_core::packing::fraction::CpuMilli;
use kerf_core::units::MemoryMib;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compute {
    pub cpu: CpuMilli,
    /// Memory of the node, not of a GPU.
    pub memory: MemoryMib,
}

impl Compute {
    /// More than any node has.
    pub const PLENTY: Self = Self { cpu: CpuMilli(1_000_000), memory: MemoryMib(1 << 26) };

    /// Reads a list of resources from the amount that it has for a name. A resource that is missing or unreadable counts
    /// as zero.
    #[must_use]
    pub fn from_amounts<'r>(listed: impl Fn(&str) -> Option<&'r str>) -> Self {
        let amount = |name: &str| listed(name).and_then(amount).unwrap_or(0.0);
        Self {
            cpu: CpuMilli(whole(amount("cpu") * 1000.0)),
            memory: MemoryMib(whole(amount("memory") / MIB).into()),
        }
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu: CpuMilli(self.cpu.0.saturating_add(other.cpu.0)),
            memory: MemoryMib(self.memory.0.saturating_add(other.memory.0)),
        }
    }

    /// The larger of each of the two amounts.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { cpu: self.cpu.max(other.cpu), memory: self.memory.max(other.memory) }
    }

    /// Whether `other` fits into this amount.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.cpu >= other.cpu && self.memory >= other.memory
    }

    /// What remains after `other` is taken; zero at least.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            cpu: CpuMilli(self.cpu.0.saturating_sub(other.cpu.0)),
            memory: self.memory.saturating_sub(other.memory),
        }
    }
}

const MIB: f64 = 1_048_576.0;

/// Kubernetes' suffixes (apimachinery, `resource.Quantity`).
const SUFFIXES: [(&str, f64); 14] = [
    ("Ki", 1024.0),
    ("Mi", MIB),
    ("Gi", MIB * 1024.0),
    ("Ti", MIB * MIB),
    ("Pi", MIB * MIB * 1024.0),
    ("Ei", MIB * MIB * MIB),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
];

/// Parses a quantity. The API server has already checked its form.
fn amount(text: &str) -> Option<f64> {
    let suffix = SUFFIXES.iter().find(|(suffix, _)| text.ends_with(suffix));
    let (number, scale) =
        suffix.map_or((text, 1.0), |(suffix, scale)| (&text[..text.len() - suffix.len()], *scale));
    number.parse::<f64>().ok().map(|n| n * scale).filter(|n| n.is_finite())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bounded on both sides before the cast"
)]
fn whole(value: f64) -> u32 {
    value.ceil().clamp(0.0, f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        let of = |cpu: &str, memory: &str| {
            let compute = Compute::from_amounts(|name| match name {
                "cpu" => Some(cpu),
                "memory" => Some(memory),
                _ => None,
            });
            (compute.cpu.0, compute.memory.0)
        };
        assert_eq!(of("500m", "4Gi"), (500, 4096));
        assert_eq!(of("2", "1048576"), (2000, 1));
        assert_eq!(of("0.1", "512Mi"), (100, 512));
        assert_eq!(of("1e1", "1G"), (10_000, 954));
        assert_eq!(of("many", "lots"), (0, 0));
    }
}
