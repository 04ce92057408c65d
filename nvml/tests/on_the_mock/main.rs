//! Tests kerf-nvml on the mock's GPUs, through the C interface.

#![expect(clippy::unwrap_used, reason = "a scenario fails by panicking, in functions that are no #[test]")]

mod calls;
mod events;
mod holders;
mod limits;
mod modes;
mod node;
mod observing;
mod parts;
mod utilization;

use kerf_nvml_mock::{Island, MigMode, MockConfig, Model};
use node::Node;

/// Does nothing unless a test started this process for a scenario, because the test harness calls it in every run.
#[test]
fn scenario() {
    let Ok(name) = std::env::var(node::SCENARIO_ENV) else { return };
    let (_, body) = SCENARIOS.iter().find(|(known, _)| *known == name).unwrap();
    body(&Node::here());
}

macro_rules! scenarios {
    ($($room:ident::$name:ident on $config:expr;)*) => {
        const SCENARIOS: &[(&str, fn(&Node))] = &[$((stringify!($name), $room::$name)),*];

        mod on_the_mock {
            use super::*;
            $(#[test] fn $name() { node::check(stringify!($name), &$config); })*
        }
    };
}

fn h100(count: u32) -> MockConfig {
    MockConfig::new().gpus(Model::H100, count, MigMode::Enabled)
}

fn uncut(model: Model) -> MockConfig {
    MockConfig::new().gpus(model, 1, MigMode::Disabled)
}

/// Two GPUs with six NVLinks to each other, one GPU in MIG mode, and one with eighteen NVLinks to a switch.
fn islands() -> MockConfig {
    let config = uncut(Model::A100Gb80).gpus(Model::A100Gb80, 1, MigMode::Disabled);
    let config = config.gpus(Model::H100, 1, MigMode::Enabled).gpus(Model::H100, 1, MigMode::Disabled);
    let mut config = config.island([0, 1], 6);
    config.islands.push(Island { gpus: vec![2, 3], links: 18, switched: true });
    MockConfig { numa_nodes: vec![0, 1], ..config }
}

scenarios! {
    calls::an_observation_without_changes_repeats_no_query on h100(8);
    observing::an_observation_has_every_field_of_a_gpu on h100(1).gpus(Model::T4, 1, MigMode::Disabled);
    observing::a_process_in_several_lists_is_one_process on h100(1);
    observing::a_lost_gpu_keeps_its_last_state on h100(2);
    observing::failed_optional_queries_are_unknown on h100(2);
    observing::a_backend_for_one_gpu_touches_no_other on h100(2);
    observing::the_topology_is_read_once on islands();
    parts::a_place_that_the_driver_lacks_is_refused_by_name on h100(1);
    observing::a_gpu_that_never_answered_is_left_out on h100(2);
    observing::an_error_of_all_of_nvml_fails_the_observation on h100(2);
    observing::after_a_reboot_hopper_has_no_instances on h100(1);
    observing::instances_of_another_program_are_foreign on h100(1);
    observing::an_answer_with_less_than_before_is_rejected on h100(1);
    observing::profiles_are_listed_with_mig_mode_off_too on uncut(Model::A30).gpus(Model::L4, 1, MigMode::Disabled);
    observing::errors_in_remapped_memory_do_not_close_a_gpu on uncut(Model::H200).gpus(Model::T4, 1, MigMode::Disabled);
    utilization::processes_and_instances_are_measured on h100(1).gpus(Model::T4, 1, MigMode::Disabled);
    utilization::values_that_the_driver_does_not_report_are_left_out on h100(1).gpus(Model::T4, 1, MigMode::Disabled);
    parts::a_full_instance_is_created_and_destroyed on h100(1);
    parts::parts_are_created_and_destroyed_one_by_one on h100(1);
    parts::a_gpu_instance_without_its_compute_instance_is_destroyed on h100(1);
    parts::a_gpu_instance_without_a_compute_instance_is_completed on h100(1);
    parts::a_refused_part_leaves_the_others on h100(1);
    parts::an_interrupted_destruction_is_continued on h100(1);
    parts::another_instance_in_the_same_place_is_not_destroyed on h100(1);
    parts::an_unknown_profile_is_refused_by_its_name on h100(1);
    holders::a_busy_instance_names_its_processes on h100(1);
    holders::an_unlisted_holder_is_named_as_a_guess on h100(1);
    holders::a_process_on_the_whole_gpu_keeps_it_from_being_cut on h100(1);
    modes::mig_mode_is_switched_and_changes_the_minor on uncut(Model::H100).gpus(Model::H100, 1, MigMode::Enabled);
    modes::a_gpu_in_use_keeps_its_mig_mode on h100(1);
    modes::a_change_that_would_stay_pending_is_cancelled on h100(1);
    modes::ampere_switches_with_a_reset on uncut(Model::A100Gb40);
    modes::ampere_switches_without_a_reset_where_the_driver_can on uncut(Model::A100Gb40).ampere_reset_free();
    modes::a_gpu_without_mig_refuses_the_mode on uncut(Model::L4);
    modes::compute_mode_is_set_and_restored on uncut(Model::H100);
    limits::a_cgroup_is_limited_from_driver_r615_on on uncut(Model::H100).driver_version("615.71.09");
    limits::an_older_driver_is_refused_by_its_version on uncut(Model::H100);
    events::errors_come_once_with_their_instance on h100(2);
    events::a_gpu_that_fell_off_the_bus_is_still_named on h100(1);
    events::an_event_with_a_new_handle_is_attributed_to_its_gpu on h100(2);
    events::memory_errors_come_as_events on uncut(Model::H200);
    events::gpus_that_do_not_answer_are_not_watched on h100(2);
    events::a_gpu_that_could_not_be_registered_is_watched_once_it_answers on h100(2);
}

#[test]
fn a_missing_library_is_named() {
    let error = kerf_nvml::NvmlBackend::open("libno-such.so".as_ref()).err().unwrap();
    let text = error.to_string();
    assert!(text.starts_with("failed to load NVML from libno-such.so"), "{text}");
    assert_eq!(error.code(), kerf_nvml::NvmlCode::LibraryNotFound);
}
