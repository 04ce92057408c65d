use super::super::tests::{index, reserve, uid, write};
use super::*;
use crate::ask::Ask;
use crate::cluster_index::Progress;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus};
use kerf_core::names::PodKey;
use kerf_core::packing::Refusal;
use kerf_core::testing::{node_status, request, slice_status};
use kerf_runtime::gpu_node::GpuNode;
use serde_json::json;

/// The agent's word, as of the revision that it has seen.
fn agent_says(index: &mut ClusterIndex, spec: &GpuNodeSpec, status: &GpuNodeStatus) {
    let mut node = GpuNode::new(&"n".into());
    node.metadata.uid = Some("object".into());
    (node.spec, node.status) = (Some(json!(spec)), Some(json!(status)));
    index.show_node(&node);
}

/// A status of the node as of `observed`, with what `spec` wants ready.
fn status(spec: &GpuNodeSpec, observed: u64) -> GpuNodeStatus {
    let slices = spec.slices.iter().map(|slice| slice_status(slice, false)).collect();
    GpuNodeStatus { slices, observed_revision: observed, ..node_status(&["H100-80GB"]) }
}

fn cost(index: &mut ClusterIndex) -> Result<(), Refusal> {
    let ask = Ask::read(Some(&request("nvidia.com/mig-1g.10gb", 1).to_json())).unwrap();
    index.place("n", &uid("other"), &ask).map(|_| ())
}

#[test]
fn a_node_whose_agent_does_not_follow_is_left_until_it_does() {
    let (mut index, now) = (index(), Instant::now());
    reserve(&mut index, "a");
    let spec = write(&mut index).unwrap();
    index.expire(now);
    index.expire(now + PATIENCE.mul_f32(0.9));
    assert_eq!(cost(&mut index), Ok(()), "a cut takes its time");
    index.take_effects();
    index.expire(now + PATIENCE);
    assert_eq!(cost(&mut index), Err(Refusal::AgentSilent));
    assert!(index.take_effects().changed.contains("n"));

    assert!(index.give_up(&uid("a")));
    assert_eq!(index.progress(&uid("a"), &"n".into()), Progress::Lost);
    let again = index.reserve(&uid("a"), &PodKey::new("default", "a"), &"n".into(), None);
    assert_eq!(again, Err(Refusal::AgentSilent.into()), "what was given up cannot be bound");
    let released = write(&mut index).unwrap();
    index.expire(now + PATIENCE * 9);
    assert_eq!(
        cost(&mut index),
        Err(Refusal::AgentSilent),
        "another write of ours is no word of the agent's"
    );

    // It comes back, and cuts what it finds first.
    agent_says(&mut index, &released, &status(&spec, spec.revision));
    assert_eq!(cost(&mut index), Ok(()));
    agent_says(&mut index, &released, &status(&released, released.revision));
    index.expire(now + PATIENCE * 20);
    assert_eq!(cost(&mut index), Ok(()));
}

#[test]
fn an_agent_that_takes_steps_may_be_behind_for_as_long_as_it_likes() {
    let (mut index, mut now) = (index(), Instant::now());
    let mut before = None;
    for pod in ["a", "b", "c"] {
        reserve(&mut index, pod);
        let spec = write(&mut index).unwrap();
        if let Some(before) = before.replace(spec.clone()) {
            agent_says(&mut index, &spec, &status(&before, before.revision));
        }
        index.expire(now);
        now += PATIENCE.mul_f32(0.9);
        index.expire(now);
        assert_eq!(cost(&mut index), Ok(()), "{pod}");
    }
    index.expire(now + PATIENCE);
    assert_eq!(cost(&mut index), Err(Refusal::AgentSilent));
    index.remove_node(&"n".into());
    agent_says(&mut index, &GpuNodeSpec::default(), &node_status(&["H100-80GB"]));
    assert_eq!(cost(&mut index), Ok(()), "a GpuNode made anew begins anew");
}

#[test]
fn an_agent_that_says_itself_that_it_does_not_serve_is_told_of_by_its_own_word() {
    let (mut index, now) = (index(), Instant::now());
    reserve(&mut index, "a");
    let spec = write(&mut index).unwrap();
    index.expire(now);
    index.expire(now + PATIENCE);
    let gone = GpuNodeStatus { conditions: Vec::new(), ..status(&spec, 0) };
    agent_says(&mut index, &spec, &gone);
    assert_eq!(cost(&mut index), Err(Refusal::AgentNotReady));
}
