//! The rules for instances on one GPU, written a second time and without core's code, so that they can judge core's
//! decisions and plans.

use kerf_core::mig::{Instance, MigTable};

/// What is wrong with a set of instances on a GPU with this table: an unlisted place, a memory slice used twice, too
/// many compute slices, too many instances of a profile, or media engines taken twice.
pub fn fault(table: &MigTable, instances: &[Instance]) -> Option<&'static str> {
    let mut cells = [false; 64];
    let (mut compute, mut media) = (0, 0);
    for instance in instances {
        let Some(entry) = table.entries().iter().find(|entry| entry.profile == instance.profile) else {
            return Some("no such profile");
        };
        if entry.size != instance.placement.size || !entry.starts.contains(&instance.placement.start) {
            return Some("no such place");
        }
        for cell in 0..instance.placement.size {
            let cell = &mut cells[usize::from(instance.placement.start + cell)];
            if std::mem::replace(cell, true) {
                return Some("a memory slice is used twice");
            }
        }
        compute += u32::from(instance.profile.compute());
        let name = instance.profile.to_string();
        media += u32::from(name.contains("+me"));
        if instances.iter().filter(|other| other.profile == instance.profile).count() > usize::from(entry.max)
        {
            return Some("too many of a profile");
        }
    }
    let most = table.entries().iter().map(|entry| u32::from(entry.profile.compute())).max();
    if Some(compute) > most {
        Some("more compute slices than there are")
    } else if media > 1 {
        Some("the media engines are taken twice")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packing::table;
    use kerf_core::mig::Placement;

    fn faults(instances: &[(&str, u8, u8)]) -> Option<&'static str> {
        let instance = |(name, start, size): &(&str, u8, u8)| Instance {
            profile: name.parse().unwrap(),
            placement: Placement { start: *start, size: *size },
        };
        fault(&table().unwrap(), &instances.iter().map(instance).collect::<Vec<_>>())
    }

    #[test]
    fn each_rule_refuses() {
        assert_eq!(faults(&[("4g.40gb", 0, 4), ("3g.40gb", 4, 4)]), None);
        assert_eq!(faults(&[("4g.40gb", 0, 4), ("1g.10gb", 3, 1)]), Some("a memory slice is used twice"));
        assert_eq!(faults(&[("4g.40gb", 4, 4)]), Some("no such place"));
        assert_eq!(faults(&[("5g.50gb", 0, 4)]), Some("no such profile"));
        assert_eq!(faults(&[("1g.10gb+me", 0, 1), ("1g.10gb+me", 1, 1)]), Some("too many of a profile"));
    }
}
