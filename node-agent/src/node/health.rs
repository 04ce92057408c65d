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
    /// The policy in the GpuNode.
    pub(crate) policy: Neighbour,
    /// The extender's leader.
    pub(crate) leader: Neighbour,
    /// Why the disk takes no reservation.
    pub(crate) disk: Option<String>,
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
    /// Why no leader orders.
    pub(crate) fn leader_trouble(&self) -> Option<(String, String)> {
        self.leader.trouble(
            "NotConnected",
            "the extender's leader has not been reached yet (port 9445 of its pods, extender.agentsPort)",
        )
    }

    /// The first thing that is wrong: a word for programs and a sentence for people.
    pub(crate) fn trouble(&self) -> Option<(String, String)> {
        let nvml = self.nvml.trouble("NvmlUnavailable", "NVML has not answered yet");
        nvml.or_else(|| self.disk.clone().map(|text| ("RecordNotWritten".to_owned(), text)))
            .or_else(|| {
                self.registration.trouble("KubeletUnavailable", "resource names are being registered")
            })
            .or_else(|| {
                self.pod_resources.trouble("KubeletUnavailable", "pod-resources has not answered yet")
            })
            .or_else(|| self.pods.trouble("PodsUnknown", "the node's pods have not been listed yet"))
            .or_else(|| self.policy.trouble("SpecUnreadable", "the GpuNode has not been read yet"))
            .or_else(|| self.leader_trouble())
    }
}
