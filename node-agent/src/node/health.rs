//! What stands in the way of serving the node: the reasons of the condition `Ready`.

/// The agent's neighbours, and what is wrong with each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health {
    /// NVML was never read, or the last call failed.
    pub(crate) nvml: Neighbour,
    /// The kubelet has not taken all resource names.
    pub(crate) registration: Neighbour,
    /// The kubelet's account of holders.
    pub(crate) pod_resources: Neighbour,
    /// The pods that are bound to the node.
    pub(crate) pods: Neighbour,
    /// The spec in the GpuNode.
    pub(crate) spec: Neighbour,
    /// The GpuNode has a spec of an older leader than was seen; the one before stays in force.
    pub(crate) ignored: Option<String>,
}

/// How one neighbour fares.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Neighbour {
    /// Not heard yet.
    #[default]
    Awaited,
    /// Well.
    Well,
    /// Not well, and why.
    Ill(String),
}

impl Neighbour {
    pub(crate) fn is_well(&self) -> bool {
        *self == Self::Well
    }

    fn trouble(&self, reason: &str, awaited: &str) -> Option<(String, String)> {
        match self {
            Self::Well => None,
            Self::Awaited => Some((reason.to_owned(), awaited.to_owned())),
            Self::Ill(text) => Some((reason.to_owned(), text.clone())),
        }
    }
}

impl Health {
    /// Whether the GpuNode of now was read, so that what is known of its leaders is of this object.
    pub(crate) fn has_read_spec(&self) -> bool {
        self.spec != Neighbour::Awaited || self.ignored.is_some()
    }

    /// The first thing that is wrong: a word for programs and a sentence for people.
    pub(crate) fn trouble(&self) -> Option<(String, String)> {
        let nvml = self.nvml.trouble("NvmlUnavailable", "NVML has not answered yet");
        nvml.or_else(|| {
            self.registration.trouble("KubeletUnavailable", "resource names are being registered")
        })
        .or_else(|| self.pod_resources.trouble("KubeletUnavailable", "pod-resources has not answered yet"))
        .or_else(|| self.pods.trouble("PodsUnknown", "the node's pods have not been listed yet"))
        .or_else(|| self.ignored.clone().map(|text| ("SpecIgnored".to_owned(), text)))
        .or_else(|| self.spec.trouble("SpecUnreadable", "the GpuNode has not been read yet"))
    }
}
