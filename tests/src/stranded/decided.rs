//! Judges core's decision alone: kube-scheduler's checks come from the account, the GPUs' capacity from core.

use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, Holder, MigPart, Shape, SliceState, SliceStatus};
use kerf_core::inventory::NodeInventory;
use kerf_core::kind::Kind;
use kerf_core::mig::MigTable;
use kerf_core::names::NodeName;
use kerf_core::packing::{Fleet, Terms};
use kerf_core::resource::NEUTRAL_SIZES;
use kerf_core::testing::{choose_among, node_status};
use kerf_core::units::MemoryMib;

use super::{Case, CaseGpu, CaseNode, Verdict};

/// The verdict on the choice of `choose_among` for the pod.
///
/// # Errors
/// Fails with the part of the simulated NVML's state that core cannot parse.
pub fn decide(case: &Case) -> anyhow::Result<Verdict> {
    let read = |node: &CaseNode| Ok(NodeInventory::from_spec(&GpuNodeSpec::default(), &node.status()?));
    let all = case.nodes.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    let mut fleet = Fleet::new(Terms::default());
    for gpu in all.iter().flat_map(|inventory| &inventory.gpus) {
        gpu.join(&mut fleet, None);
    }
    let names: Vec<NodeName> = (0..all.len()).map(|place| NodeName::new(place.to_string())).collect();
    let offered = names.iter().zip(&all).zip(&case.nodes).filter(|(_, node)| node.is_offered(&case.pod));
    let request = case.pod.request();
    let selection = choose_among(&request, offered.map(|(named, _)| named), &fleet);
    let given = selection.best.map(|(name, place)| {
        let kind = place.rank.plan(&request).and_then(|plan| plan.kind(case.pod.name()));
        let kind = kind.ok_or_else(|| anyhow::anyhow!("the best place has no kind"))?;
        anyhow::Ok((name.as_str().parse()?, kind))
    });
    Ok(case.judge(given.transpose()?))
}

impl CaseNode {
    /// The status that its agent would report.
    pub(super) fn status(&self) -> anyhow::Result<GpuNodeStatus> {
        let models = self.gpus.iter().map(|gpu| Ok(serde_json::to_value(gpu.state.model)?));
        let models: Vec<serde_json::Value> = models.collect::<anyhow::Result<_>>()?;
        let models: Vec<&str> = models.iter().filter_map(|name| name.as_str()).collect();
        let mut status = node_status(&models);
        status.neutral_up_to = NEUTRAL_SIZES.last().copied().filter(|_| self.knows_neutral_names);
        for (reported, gpu) in status.gpus.iter_mut().zip(&self.gpus) {
            reported.memory = MemoryMib(gpu.state.model.total_mib());
            if !gpu.state.mig.current {
                reported.kinds = vec![Kind::Whole, Kind::Mps, Kind::TimeSlicing];
                reported.profiles = MigTable::default();
            }
            for shape in gpu.shapes()? {
                status.slices.push(SliceStatus {
                    id: None,
                    gpu: reported.uuid.clone(),
                    shape,
                    state: SliceState::Held,
                    memory: shape.size().share_memory(),
                    device: None,
                    resource: None,
                    ready_for: None,
                    holder: Some(Holder {
                        namespace: "default".to_owned(),
                        pod: "before".to_owned(),
                        container: "main".to_owned(),
                    }),
                    message: None,
                    reservation: None,
                    leaving: false,
                });
            }
        }
        Ok(status)
    }
}

impl CaseGpu {
    fn shapes(&self) -> anyhow::Result<Vec<Shape>> {
        let instances = self.state.instances.iter().map(|instance| {
            let profile = self.state.profile_of(instance);
            let profile = profile.ok_or_else(|| anyhow::anyhow!("an instance has no profile"))?;
            Ok(Shape::Mig {
                profile: profile.name.parse()?,
                start: u8::try_from(instance.placement.start)?,
                size: u8::try_from(instance.placement.size)?,
                part: MigPart::Whole,
            })
        });
        let shares = self.shares.iter().map(|(kind, gb)| {
            let size_gb = kerf_core::units::SizeGb(*gb);
            Ok(Shape::share(*kind, size_gb).unwrap_or(Shape::Whole { size_gb }))
        });
        instances.chain(shares).collect()
    }
}
