//! Simulated GPUs with held and idle instances. The rule of the board counts memory slices one by one and shares no
//! code with core.

use thiserror::Error;

use crate::profile::Profile;

/// What taking a place did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// An idle instance of the profile was there, and is used again.
    Reused,
    /// An instance was created, and idle ones in its way are gone.
    Created,
}

/// Why a place cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    #[error("there is no GPU {0}")]
    NoSuchGpu(usize),
    /// The profile cannot start there.
    #[error("{0} cannot start at memory slice {1}")]
    NoSuchStart(&'static str, u8),
    /// A held instance overlaps the place.
    #[error("{0} at {1}:{2} overlaps a held instance")]
    Overlap(&'static str, usize, u8),
}

/// Instances of one GPU by the memory slice at which they start.
type Instances = [Option<Profile>; 8];

#[derive(Debug, Clone, Default)]
pub struct Gpu {
    held: Instances,
    idle: Instances,
    mask: u8,
}

impl Gpu {
    /// The memory slices of held instances, as bits.
    pub fn mask(&self) -> u8 {
        self.mask
    }

    /// The number of memory slices that no instance holds.
    pub fn free(&self) -> u32 {
        self.mask.count_zeros()
    }

    pub fn held(&self) -> impl Iterator<Item = Profile> {
        self.held.iter().flatten().copied()
    }

    /// The first start of an idle instance of a profile.
    pub fn idle(&self, profile: Profile) -> Option<u8> {
        (0..).zip(&self.idle).find(|(_, idle)| **idle == Some(profile)).map(|(start, _)| start)
    }

    fn drop_idle(&mut self, mask: u8) {
        for (start, idle) in (0..).zip(&mut self.idle) {
            if idle.is_some_and(|idle| idle.mask(start) & mask != 0) {
                *idle = None;
            }
        }
    }
}

#[derive(Debug, Clone)]
pub struct Board {
    gpus: Vec<Gpu>,
}

impl Board {
    /// A board of this many uncut GPUs.
    pub fn new(gpus: usize) -> Self {
        Self { gpus: vec![Gpu::default(); gpus] }
    }

    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// Takes a place, and destroys idle instances that overlap it.
    pub fn take(&mut self, gpu: usize, profile: Profile, start: u8) -> Result<Taken, Fault> {
        let this = self.gpus.get_mut(gpu).ok_or(Fault::NoSuchGpu(gpu))?;
        if !profile.starts().contains(&start) {
            return Err(Fault::NoSuchStart(profile.name(), start));
        }
        let (at, mask) = (usize::from(start), profile.mask(start));
        if this.mask & mask != 0 {
            return Err(Fault::Overlap(profile.name(), gpu, start));
        }
        let taken = if this.idle[at] == Some(profile) { Taken::Reused } else { Taken::Created };
        this.drop_idle(mask);
        this.held[at] = Some(profile);
        this.mask |= mask;
        Ok(taken)
    }

    /// Gives a place back: its instance stays, idle.
    pub fn leave(&mut self, gpu: usize, start: u8) {
        let this = &mut self.gpus[gpu];
        if let Some(profile) = this.held[usize::from(start)].take() {
            this.mask &= !profile.mask(start);
            this.idle[usize::from(start)] = Some(profile);
        }
    }

    /// Destroys all idle instances of a GPU and creates others. None of these may overlap a held one.
    pub fn recut(&mut self, gpu: usize, idle: &[(Profile, u8)]) {
        let this = &mut self.gpus[gpu];
        this.idle = Instances::default();
        for (profile, start) in idle {
            this.idle[usize::from(*start)] = Some(*profile);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_place_cannot_be_taken_and_a_left_one_is_used_again() {
        let mut board = Board::new(1);
        assert_eq!(board.take(0, Profile::Three, 4), Ok(Taken::Created));
        assert_eq!(board.take(0, Profile::OneTen, 6), Err(Fault::Overlap("1g.10gb", 0, 6)));
        assert_eq!(board.take(0, Profile::Three, 1), Err(Fault::NoSuchStart("3g.40gb", 1)));
        assert_eq!(board.take(1, Profile::Three, 0), Err(Fault::NoSuchGpu(1)));
        board.leave(0, 4);
        assert_eq!(board.take(0, Profile::Three, 4), Ok(Taken::Reused));
    }

    #[test]
    fn an_idle_instance_is_gone_once_another_overlapped_it() {
        let mut board = Board::new(1);
        board.take(0, Profile::Two, 0).unwrap();
        board.leave(0, 0);
        assert_eq!(board.take(0, Profile::OneTen, 1), Ok(Taken::Created));
        board.leave(0, 1);
        assert_eq!(board.take(0, Profile::Two, 0), Ok(Taken::Created));
    }
}
