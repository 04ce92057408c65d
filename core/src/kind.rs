//! The kinds of slice, and the isolation classes that a pod may ask for.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The technology that makes a slice of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A GPU instance with one compute instance: memory, faults and compute are isolated.
    Mig,
    /// The whole GPU, with MIG mode off.
    Whole,
    /// A share behind the GPU's MPS control daemon: memory is isolated per process, faults are not.
    Mps,
    /// A time slice that counts by memory, with no isolation.
    TimeSlicing,
}

impl Kind {
    /// All kinds, strongest isolation first.
    pub const ALL: [Self; 4] = [Self::Mig, Self::Whole, Self::Mps, Self::TimeSlicing];

    /// The strongest class that a slice of this kind serves.
    #[must_use]
    pub fn strongest_class(self) -> IsolationClass {
        match self {
            Self::Mig | Self::Whole => IsolationClass::Hardware,
            Self::Mps => IsolationClass::Memory,
            Self::TimeSlicing => IsolationClass::None,
        }
    }

    /// The kind's name in documents, labels and messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mig => "mig",
            Self::Whole => "whole",
            Self::Mps => "mps",
            Self::TimeSlicing => "time-slicing",
        }
    }

    /// The value of the metrics' label `kind`: the kind's name, or `none` if no slice is concerned.
    #[must_use]
    pub fn label(kind: Option<Self>) -> &'static str {
        kind.map_or("none", Self::as_str)
    }

    /// All values of the metrics' label `kind`.
    pub fn labels() -> impl Iterator<Item = &'static str> {
        Self::ALL.map(Some).into_iter().chain([None]).map(Self::label)
    }
}

/// The value of the metrics' label `kind` for something about a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum KindLabel {
    /// The pod gets no slice.
    #[default]
    None,
    /// Several kinds may serve the pod, and none is chosen yet.
    Any,
    /// The kind of the pod's first slice.
    Of(Kind),
}

impl KindLabel {
    /// All values, in the order of the metrics.
    pub fn all() -> impl Iterator<Item = Self> {
        Kind::ALL.map(Self::Of).into_iter().chain([Self::Any, Self::None])
    }

    /// The value as metrics have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Any => "any",
            Self::Of(kind) => kind.as_str(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The isolation from neighbours that a pod asks for, ordered from the weakest to the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationClass {
    /// No isolation is needed, so any kind serves it.
    None,
    /// Neighbours cannot take the pod's memory.
    Memory,
    /// The hardware isolates memory, faults and compute.
    Hardware,
}

impl IsolationClass {
    /// All classes, the strongest one first.
    pub const ALL: [Self; 3] = [Self::Hardware, Self::Memory, Self::None];

    /// Whether a slice of `kind` gives at least the isolation of this class.
    #[must_use]
    pub fn is_served_by(self, kind: Kind) -> bool {
        kind.strongest_class() >= self
    }
}

impl fmt::Display for IsolationClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hardware => "hardware",
            Self::Memory => "memory",
            Self::None => "none",
        })
    }
}

/// The text does not name an isolation class.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no isolation class; write hardware, memory or none")]
pub struct UnknownClass(pub String);

impl FromStr for IsolationClass {
    type Err = UnknownClass;

    fn from_str(text: &str) -> Result<Self, UnknownClass> {
        Self::ALL
            .into_iter()
            .find(|class| class.to_string() == text)
            .ok_or_else(|| UnknownClass(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_served_by_its_own_kind_and_stronger_ones_only() {
        use IsolationClass as Class;
        let served =
            |class: Class| Kind::ALL.into_iter().filter(|k| class.is_served_by(*k)).collect::<Vec<_>>();
        assert_eq!(served(Class::Hardware), [Kind::Mig, Kind::Whole]);
        assert_eq!(served(Class::Memory), [Kind::Mig, Kind::Whole, Kind::Mps]);
        assert_eq!(served(Class::None), Kind::ALL);
    }

    #[test]
    fn classes_are_read_as_they_are_written() {
        for class in IsolationClass::ALL {
            assert_eq!(class.to_string().parse(), Ok(class));
        }
        assert_eq!("gpu".parse::<IsolationClass>(), Err(UnknownClass("gpu".into())));
    }
}
