//! What keeps the node from being served: the reasons of the condition `Ready`.

/// The agent's neighbours, and what is wrong with each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health {
    /// Ill if the last call of NVML failed.
    pub(crate) nvml: Neighbour,
    /// Whether the kubelet has accepted all resource names.
    pub(crate) registration: Neighbour,
    /// The pod-resources API, which lists the holders.
    pub(crate) pod_resources: Neighbour,
    /// The watch of the pods that are bound to the node.
    pub(crate) pods: Neighbour,
    /// The policy in the GpuNode.
    pub(crate) policy: Neighbour,
    /// The connection to the extender's leader.
    pub(crate) leader: Neighbour,
    /// Why the disk accepts no reservation; `None` if it does.
    pub(crate) disk: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Neighbour {
    /// It has not answered yet.
    #[default]
    Awaited,
    Well,
    /// It failed, for this reason.
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
    /// Why no leader sends orders.
    pub(crate) fn leader_trouble(&self) -> Option<(String, String)> {
        self.leader.trouble(
            "NotConnected",
            "the extender's leader has not been reached yet (port 9445 of its pods, extender.agentsPort)",
        )
    }

    /// The first trouble: a reason for programs and a message for people.
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
