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
    calls::a_look_at_rest_asks_for_nothing_twice on h100(8);
    observing::everything_of_a_gpu_is_seen on h100(1).gpus(Model::T4, 1, MigMode::Disabled);
    observing::a_process_in_several_lists_is_one_process on h100(1);
    observing::a_lost_gpu_stays_as_it_was on h100(2);
    observing::what_a_look_can_do_without_is_unknown on h100(2);
    observing::one_gpu_is_asked_alone on h100(2);
    observing::where_a_gpu_is_in_the_machine_is_read_once on islands();
    parts::a_place_that_the_driver_does_not_have_is_refused_by_name on h100(1);
    observing::a_gpu_that_never_answered_is_left_out on h100(2);
    observing::what_fails_for_all_of_nvml_fails_the_look on h100(2);
    observing::a_reboot_leaves_nothing_of_mig_on_hopper on h100(1);
    observing::what_somebody_else_cut_is_foreign on h100(1);
    observing::what_a_gpu_tells_less_of_itself_than_before_is_not_believed on h100(1);
    observing::what_mig_offers_is_told_with_mig_off_too on uncut(Model::A30).gpus(Model::L4, 1, MigMode::Disabled);
    observing::errors_of_memory_that_is_remapped_do_not_close_a_gpu on uncut(Model::H200).gpus(Model::T4, 1, MigMode::Disabled);
    utilization::processes_and_instances_are_measured on h100(1).gpus(Model::T4, 1, MigMode::Disabled);
    utilization::what_a_driver_does_not_tell_is_left_out on h100(1).gpus(Model::T4, 1, MigMode::Disabled);
    parts::a_full_instance_comes_and_goes on h100(1);
    parts::parts_come_and_go_one_by_one on h100(1);
    parts::a_gpu_instance_that_was_made_in_vain_goes_again on h100(1);
    parts::a_gpu_instance_that_stayed_behind_is_completed on h100(1);
    parts::a_refused_part_leaves_the_others on h100(1);
    parts::a_destruction_goes_on_where_it_stopped on h100(1);
    parts::another_instance_in_the_same_place_is_not_destroyed on h100(1);
    parts::what_a_gpu_does_not_offer_is_refused_by_name on h100(1);
    holders::a_busy_instance_names_its_processes on h100(1);
    holders::a_hidden_holder_is_guessed_at on h100(1);
    holders::a_process_on_the_whole_gpu_keeps_it_from_being_cut on h100(1);
    modes::mig_mode_goes_on_and_off_and_moves_the_minor on uncut(Model::H100).gpus(Model::H100, 1, MigMode::Enabled);
    modes::what_is_on_a_gpu_keeps_its_mode on h100(1);
    modes::a_change_that_would_wait_is_called_off on h100(1);
    modes::ampere_takes_a_reset on uncut(Model::A100Gb40);
    modes::ampere_without_reset_is_switched_where_the_driver_can on uncut(Model::A100Gb40).ampere_reset_free();
    modes::a_gpu_without_mig_has_no_mode on uncut(Model::L4);
    modes::compute_mode_is_set_and_put_back on uncut(Model::H100);
    limits::a_cgroup_is_limited_from_r615_on on uncut(Model::H100).driver_version("615.71.09");
    limits::an_older_driver_is_named on uncut(Model::H100);
    events::errors_come_once_with_their_instance on h100(2);
    events::a_gpu_that_fell_off_the_bus_is_still_named on h100(1);
    events::an_error_with_a_new_handle_is_of_its_gpu on h100(2);
    events::memory_errors_come_as_events on uncut(Model::H200);
    events::gpus_that_do_not_answer_are_not_watched on h100(2);
    events::a_gpu_that_could_not_be_registered_is_heard_once_it_can on h100(2);
}

#[test]
fn a_library_that_is_not_there_is_named() {
    let error = kerf_nvml::NvmlBackend::open("libno-such.so".as_ref()).err().unwrap();
    let text = error.to_string();
    assert!(text.starts_with("failed to load NVML from libno-such.so"), "{text}");
    assert_eq!(error.code(), kerf_nvml::NvmlCode::LibraryNotFound);
}
