//! The rights of the user who installs kerf, and of kerf's service accounts.

use super::{Finding, Observed, Seen, unknown};
use crate::check::need::{Need, Who};
use crate::counted::counted;
use std::collections::BTreeMap;

pub fn judge_installer(seen: &Observed) -> Vec<Finding> {
    let mut lacking = Vec::new();
    for (need, answer) in &seen.rights {
        match answer {
            Seen::Found(true) => {}
            Seen::Found(false) | Seen::Absent => lacking.push(need.to_string()),
            Seen::Unknown(why) => return vec![unknown("what you may do", why)],
        }
    }
    vec![if lacking.is_empty() {
        Finding::fine("you may create everything that kerf consists of")
    } else {
        Finding::failure(
            format!("you may not {}", lacking.join(", nor ")),
            "install as a cluster admin, or have the right given: kubectl create clusterrolebinding kerf-installer --clusterrole=cluster-admin --user=USER",
        )
    }]
}

pub fn judge_programs(seen: &Observed) -> Vec<Finding> {
    let mut accounts: BTreeMap<&str, Vec<&(Need, Seen<bool>)>> = BTreeMap::new();
    for right in &seen.rights {
        if let Who::Account(account) = &right.0.who {
            accounts.entry(account).or_default().push(right);
        }
    }
    accounts.into_iter().map(|(account, rights)| of_account(account, &rights, &seen.namespace)).collect()
}

fn of_account(account: &str, rights: &[&(Need, Seen<bool>)], namespace: &str) -> Finding {
    let mut lacking = Vec::new();
    for (need, answer) in rights {
        match answer {
            Seen::Found(true) => {}
            Seen::Found(false) | Seen::Absent => lacking.push(need.to_string()),
            Seen::Unknown(why) => return unknown(&format!("the rights of {account}"), why),
        }
    }
    if lacking.is_empty() {
        return Finding::fine(format!(
            "service account {account} has its {}",
            counted(rights.len(), "right")
        ));
    }
    Finding::failure(
        format!("service account {namespace}/{account} may not {}", lacking.join(", nor ")),
        "install kerf's roles anew: helm upgrade, or kubectl apply --server-side -k deploy/base",
    )
}
