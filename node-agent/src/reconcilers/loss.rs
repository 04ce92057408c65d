//! Detects that the clients of an MPS server have lost their work though its daemon continues: its server reported a
//! fault, or ended.
//!
//! A daemon always has a server, because its supervisor requests one. So a server that is gone did not end for lack of
//! clients.

use crate::mps::{Observed, State, Status};

/// The last state of each target in which it served or had a fault. In between, servers come and go by design.
#[derive(Debug, Default)]
pub(super) struct Losses(Observed);

impl Losses {
    /// The targets whose clients have lost their work since the last call, and how. The generation shows a daemon that
    /// was restarted.
    pub(super) fn since(&mut self, now: &Observed) -> Vec<(String, String)> {
        self.0.retain(|target, _| now.contains_key(target));
        let mut lost = Vec::new();
        for (target, status) in now.iter().filter(|(_, status)| is_settled(status)) {
            let before = self.0.insert(target.clone(), status.clone());
            let how = before.and_then(|before| loss(&before, status));
            lost.extend(how.map(|how| (target.clone(), how)));
        }
        lost
    }
}

fn loss(before: &Status, now: &Status) -> Option<String> {
    if before.generation != now.generation || is_fault(before) {
        return None;
    }
    if let State::Ill { text, fault: true } = &now.state {
        return Some(text.clone());
    }
    let gone = before.servers.difference(&now.servers).next()?;
    Some(format!("MPS server {gone} has ended"))
}

fn is_fault(status: &Status) -> bool {
    matches!(status.state, State::Ill { fault: true, .. })
}

fn is_settled(status: &Status) -> bool {
    is_fault(status) || matches!(status.state, State::Serving { .. } | State::Adjusting { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::units::MemoryMib;
    use std::collections::BTreeSet;

    const SERVING: State = State::Serving { limit: MemoryMib(4096), threads: 100 };

    fn fault() -> State {
        State::Ill { text: "it reports a fault".to_owned(), fault: true }
    }

    #[test]
    fn a_loss_is_reported_once() {
        let ill = || State::Ill { text: "it does not answer".to_owned(), fault: false };
        let ended = || State::Restarting { text: "it was killed".to_owned() };
        // Each: the state, the generation, the server, and the expected report.
        let cases = [
            ("the first look", SERVING, 1, Some(10), None),
            ("nothing", SERVING, 1, Some(10), None),
            ("another server at once", SERVING, 1, Some(11), Some("MPS server 10 has ended")),
            ("one that is being started", State::Starting, 1, None, None),
            ("it serves again", SERVING, 1, Some(12), Some("MPS server 11 has ended")),
            ("a fault", fault(), 1, Some(12), Some("it reports a fault")),
            ("it lasts", fault(), 1, Some(12), None),
            ("another server in its place", SERVING, 1, Some(13), None),
            ("probes that fail", ill(), 1, Some(13), None),
            ("and answer again", SERVING, 1, Some(13), None),
            ("a daemon that ended", ended(), 1, None, None),
            ("the next daemon", SERVING, 2, Some(14), None),
        ];
        let mut losses = Losses::default();
        for (what, state, generation, server, reported) in cases {
            let (servers, clients) = (server.into_iter().collect(), BTreeSet::new());
            let status = Status { state, generation, servers, clients };
            let reported: Vec<_> =
                reported.map(|how: &str| ("GPU-0".to_owned(), how.to_owned())).into_iter().collect();
            assert_eq!(losses.since(&[("GPU-0".to_owned(), status)].into()), reported, "{what}");
        }
    }
}
