//! The reconcilers of MPS daemons and device files, each with delays, and the users of memory.

use super::World;
use crate::access::AccessGrant;
use crate::gpu::fake::uuid;
use crate::node::{Daemon, Daemons, DesiredSlices};
use crate::processes::{GpuUsage, Usage};
use kerf_core::names::{DeviceId, GpuUuid};
use kerf_core::units::MemoryMib;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Reconcilers {
    pub(super) wanted: Option<DesiredSlices>,
    /// Daemons and files outlive the agent.
    daemons: BTreeMap<GpuUuid, Daemon>,
    files: BTreeMap<DeviceId, Result<AccessGrant, String>>,
    generation: u64,
    /// Memory in use on the GPU without MIG mode, in MiB, by a process outside of kerf.
    pub(super) outside: u64,
}

impl Reconcilers {
    pub(super) fn daemons(&self) -> Daemons {
        self.daemons.clone()
    }

    pub(super) fn daemon(&self, gpu: &GpuUuid) -> Option<&Daemon> {
        self.daemons.get(gpu)
    }

    pub(super) fn can_be_opened(&self, device: &DeviceId) -> bool {
        self.files.get(device).is_some_and(Result::is_ok)
    }

    /// The agent was restarted, and has not published its desired state.
    pub(super) fn forget(&mut self) {
        self.wanted = None;
    }

    pub(super) fn boot(&mut self) {
        self.daemons.clear();
        self.files.clear();
    }

    /// One turn of the reconcilers. With another choice than 1 something may fail.
    fn turn(&mut self, choice: usize) {
        let Some(DesiredSlices { daemons, reach, .. }) = self.wanted.clone() else { return };
        let ill = choice % 8 == 6;
        self.files.retain(|device, _| reach.contains_key(device));
        for device in reach.into_keys() {
            let made = if ill { Err("no room".into()) } else { Ok(AccessGrant::default()) };
            self.files.insert(device, made);
        }
        let before = std::mem::take(&mut self.daemons);
        for (gpu, daemon) in before.iter().filter(|(gpu, _)| !daemons.contains_key(*gpu)) {
            if *daemon != Daemon::Changing {
                self.daemons.insert(gpu.clone(), Daemon::Changing);
            }
        }
        for (gpu, wanted) in daemons {
            let next = match before.get(&gpu) {
                None => Daemon::Changing,
                Some(Daemon::Serving { .. }) if ill => Daemon::Ill("it does not answer".into()),
                Some(Daemon::Serving { generation, .. }) if choice % 8 != 7 => {
                    Daemon::Serving { generation: *generation, limit: wanted.limit, threads: wanted.threads }
                }
                Some(_) => {
                    self.generation += 1;
                    Daemon::Serving {
                        generation: self.generation,
                        limit: wanted.limit,
                        threads: wanted.threads,
                    }
                }
            };
            self.daemons.insert(gpu, next);
        }
    }
}

impl World {
    pub(super) fn keep(&mut self, choice: usize) {
        if self.reconcilers.wanted.is_some() {
            self.reconcilers.turn(choice);
            self.node.on_daemons(self.reconcilers.daemons());
            self.node.on_reachable(self.reconcilers.files.clone());
        }
    }

    /// The usage of the GPUs: pods use what they have, and another process uses a part of the last GPU.
    pub(super) fn usage(&self) -> Usage {
        let others = vec![("somebody".to_owned(), 7, MemoryMib(self.reconcilers.outside))];
        Usage::from([(uuid(2), GpuUsage { others, ..GpuUsage::default() })])
    }
}
