//! The requirements of a request on one slice, on any node.

use super::is_worth_whole;
use crate::contract::ContainerRequest;
use crate::resource::ResourceName;
use crate::units::{ComputePercent, MemoryMib, SizeGb};

/// The requirements of a request on one slice.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// The nominal size of the slice.
    pub size: SizeGb,
    /// The least real memory; `None` if the nominal size is enough.
    pub memory: Option<MemoryMib>,
    /// The least share of a GPU's compute; `None` if none is asked for.
    pub compute: Option<ComputePercent>,
    /// Whether each of several slices must be on another GPU.
    pub distinct_gpus: bool,
}

impl Asked {
    /// A request for this nominal size and nothing else.
    #[must_use]
    pub fn for_size(size: SizeGb) -> Self {
        Self { size, memory: None, compute: None, distinct_gpus: false }
    }

    /// The request of a container in an admitted pod.
    #[must_use]
    pub fn from_request(request: &ContainerRequest) -> Self {
        let ContainerRequest { size_gb: size, memory, compute, distinct_gpus, .. } = *request;
        Self { size, memory, compute, distinct_gpus }
    }

    /// Whether a GPU of this size may be given under this name. Only a whole GPU must be worth its size.
    pub(crate) fn is_worth(&self, name: ResourceName, gpu: SizeGb) -> bool {
        name != ResourceName::Whole || is_worth_whole(self.size, gpu, self.distinct_gpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_asks_for_one_gpu_that_is_worth_it() {
        let is_worth = |asked: Asked, gpu| asked.is_worth(ResourceName::Whole, SizeGb(gpu));
        let asked = Asked::for_size(SizeGb(10));
        assert!(is_worth(asked, 19) && !is_worth(asked, 20));
        assert!(is_worth(Asked { distinct_gpus: true, ..asked }, 20));
        assert!(asked.is_worth(ResourceName::Mps(SizeGb(10)), SizeGb(20)));
    }
}
