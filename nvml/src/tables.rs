//! Caches the profiles that MIG offers on each GPU, because they only change with its MIG mode. An answer may be
//! incomplete because a call failed, so the table is read again until two reads in a row agree. If the catalog has more
//! profiles, it is read at every observation, because NVML returns the same codes for a failed call and for a profile
//! that the driver lacks.

use crate::differences::{warn_of_differences, warn_of_places};
use crate::processes::MIB;
use crate::{GpuError, ffi};
use kerf_core::mig::{ComputeProfile, GiProfileId, MigTable, Profile, ProfileEntry};
use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::collections::{BTreeMap, BTreeSet};

/// The number of GPU instance profile indexes to try. NVML 13 has 18 (`NVML_GPU_INSTANCE_PROFILE_COUNT`). It is larger
/// because newer drivers may have more. An index beyond a driver's last returns an error that ends the walk.
const GI_PROFILE_INDEXES: u32 = 32;

/// How many compute instance profile indexes to try: `NVML_COMPUTE_INSTANCE_PROFILE_COUNT` is 9 with the NVL profile.
const CI_PROFILE_INDEXES: u32 = 9;

/// Below this index there is one compute instance profile for each count of slices. Variants follow
/// (`NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1` is 7).
const CI_PLAIN_INDEXES: u32 = 7;

#[derive(Clone, Default)]
pub(crate) struct CiProfiles {
    pub(crate) all: Vec<u32>,
    /// The profile of full size with the most multiprocessors, because some GPU instances have two with the same
    /// slices.
    pub(crate) full: Option<u32>,
    pub(crate) full_size: BTreeSet<u32>,
    pub(crate) plain: BTreeMap<u32, u32>,
    /// Where compute instances of plain profiles may start, by number of slices, as far as the driver reports it.
    pub(crate) starts: BTreeMap<u32, Vec<u32>>,
}

impl CiProfiles {
    /// Whether the profile is plain, so that core has a name for it; variants have none.
    pub(crate) fn is_plain(&self, profile: u32) -> bool {
        self.plain.values().any(|id| *id == profile)
    }
}

#[derive(Default)]
pub(crate) struct Tables {
    gi: BTreeMap<GpuUuid, GiTable>,
    ci: BTreeMap<(GpuUuid, u32), CiProfiles>,
}

struct GiTable {
    table: MigTable,
    is_whole: bool,
    is_confirmed: bool,
}

impl Tables {
    /// The profiles of `gpu`. The first call logs where the catalog differs.
    pub(crate) fn get(&mut self, gpu: &GpuUuid, device: &Device<'_>) -> Result<MigTable, GpuError> {
        if let Some(known) = self.gi.get(gpu) {
            return Ok(known.table.clone());
        }
        let table = read(device)?;
        let product = device.name().map_err(GpuError::call("nvmlDeviceGetName"))?;
        let memory = device.memory_info().map_err(GpuError::call("nvmlDeviceGetMemoryInfo_v2"))?;
        let is_whole = warn_of_differences(gpu, &product, MemoryMib(memory.total / MIB), &table);
        self.gi.insert(gpu.clone(), GiTable { table: table.clone(), is_whole, is_confirmed: false });
        Ok(table)
    }

    /// The profiles of `gpu`, for an observation. A list with fewer profiles than before is an error, because instances
    /// on the GPU could be missed.
    pub(crate) fn refresh(&mut self, gpu: &GpuUuid, device: &Device<'_>) -> Result<MigTable, GpuError> {
        let Some(known) = self.gi.get_mut(gpu) else { return self.get(gpu, device) };
        if known.is_confirmed {
            return Ok(known.table.clone());
        }
        let table = read(device)?;
        if table == known.table {
            known.is_confirmed = known.is_whole;
            return Ok(table);
        }
        if let Some(gone) = known.table.entries().iter().find(|e| table.entry(e.profile).is_none()) {
            let what = format!("no {}, which it gave before", gone.profile);
            return Err(GpuError::Malformed { call: PROFILES, what });
        }
        self.forget(gpu);
        self.get(gpu, device)
    }

    pub(crate) fn compute(
        &mut self,
        gpu: &GpuUuid,
        nvml: &Nvml,
        gi: ffi::GiHandle,
        entry: &ProfileEntry,
    ) -> Result<CiProfiles, GpuError> {
        let key = (gpu.clone(), entry.id.0);
        if let Some(known) = self.ci.get(&key) {
            return Ok(known.clone());
        }
        let profiles = read_compute(nvml, gi, u32::from(entry.profile.compute()))?;
        // Every GPU instance has a profile of full size, and without it kerf cannot identify the instance's holder.
        if profiles.full.is_none() {
            return Err(GpuError::NoFullCompute(entry.profile));
        }
        warn_of_places(gpu, entry.profile, &profiles.starts);
        let is_listed = |part: ComputeProfile| profiles.plain.contains_key(&u32::from(part.compute()));
        if ComputeProfile::all(entry.profile).all(is_listed) {
            self.ci.insert(key, profiles.clone());
        }
        Ok(profiles)
    }

    pub(crate) fn forget(&mut self, gpu: &GpuUuid) {
        self.gi.remove(gpu);
        self.ci.retain(|(of, _), _| of != gpu);
    }
}

fn read_compute(nvml: &Nvml, gi: ffi::GiHandle, slices: u32) -> Result<CiProfiles, GpuError> {
    let mut found = Vec::new();
    for index in 0..CI_PROFILE_INDEXES {
        match ffi::ci_profile(nvml, gi, index) {
            Ok(profile) => found.push((index, profile)),
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => {}
            Err(error) => return Err(GpuError::call("nvmlGpuInstanceGetComputeInstanceProfileInfo")(error)),
        }
    }
    let full = || found.iter().map(|(_, profile)| profile).filter(|profile| profile.slices == slices);
    let plain = || found.iter().filter(|(index, _)| *index < CI_PLAIN_INDEXES).map(|(_, profile)| profile);
    let starts = plain().filter_map(|profile| Some((profile.slices, starts(nvml, gi, profile)?)));
    Ok(CiProfiles {
        all: found.iter().map(|(_, profile)| profile.id).collect(),
        full: full().max_by_key(|profile| profile.multiprocessors).map(|profile| profile.id),
        full_size: full().map(|profile| profile.id).collect(),
        plain: plain().map(|profile| (profile.slices, profile.id)).collect(),
        starts: starts.collect(),
    })
}

/// The places where compute instances of a profile may start. `None` if the driver does not report them. Then only
/// core's rule counts, because a missing answer must not make a part impossible.
fn starts(nvml: &Nvml, gi: ffi::GiHandle, profile: &ffi::CiProfile) -> Option<Vec<u32>> {
    let places = ffi::ci_placements(nvml, gi, profile.id).inspect_err(|error| {
        tracing::debug!(%error, "nvmlGpuInstanceGetComputeInstancePossiblePlacements failed");
    });
    let whole = places.ok()?.into_iter().filter(|(_, size)| *size == profile.slices);
    let mut starts: Vec<u32> = whole.map(|(start, _)| start).collect();
    starts.sort_unstable();
    Some(starts).filter(|starts| !starts.is_empty())
}

/// The profiles that NVML lists, with MIG mode on or off; none on a GPU without MIG.
pub(crate) fn read(device: &Device<'_>) -> Result<MigTable, GpuError> {
    let mut entries = Vec::new();
    for index in 0..GI_PROFILE_INDEXES {
        match ffi::gi_profile(device, index) {
            Ok(profile) => entries.extend(read_entry(device, &profile)?),
            Err(NvmlError::NotSupported) => {}
            Err(NvmlError::InvalidArg) => break,
            Err(error) => return Err(GpuError::call(PROFILES)(error)),
        }
    }
    Ok(MigTable::new(entries))
}

const PROFILES: &str = "nvmlDeviceGetGpuInstanceProfileInfoV";
const PLACEMENTS: &str = "nvmlDeviceGetGpuInstancePossiblePlacements_v2";

/// The entry of a profile; `None` if its name is unknown to kerf, which then does not cut it.
fn read_entry(device: &Device<'_>, profile: &ffi::GiProfile) -> Result<Option<ProfileEntry>, GpuError> {
    let name = profile.name.strip_prefix("MIG ").unwrap_or(&profile.name);
    let Ok(parsed) = name.parse::<Profile>() else {
        tracing::warn!(name, id = profile.id, "ignored a GPU instance profile with an unknown name");
        return Ok(None);
    };
    let places = ffi::placements(device, profile.id).map_err(GpuError::call(PLACEMENTS))?;
    let mut starts =
        places.iter().map(|(start, _)| narrow(PLACEMENTS, *start)).collect::<Result<Vec<_>, _>>()?;
    starts.sort_unstable();
    let Some((_, size)) = places.first() else { return Ok(None) };
    Ok(Some(ProfileEntry {
        id: GiProfileId(profile.id),
        profile: parsed,
        memory: MemoryMib(profile.memory_mib),
        size: narrow(PLACEMENTS, *size)?,
        starts,
        max: narrow(PROFILES, profile.instances)?,
    }))
}

pub(crate) fn narrow(call: &'static str, number: u32) -> Result<u8, GpuError> {
    u8::try_from(number).map_err(|_| GpuError::Malformed { call, what: format!("the number {number}") })
}
