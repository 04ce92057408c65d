//! Requests for a new list from a watch. A leader makes them, and the watches serve them.

use tokio::sync::watch;

/// A watch's list. The watch begins with one, and lists again on request.
#[derive(Debug, Default)]
pub struct List {
    /// The number of the latest list that was requested.
    pub(crate) wanted: watch::Sender<u64>,
    /// The number of the last complete list.
    pub(crate) done: watch::Sender<u64>,
}

impl List {
    /// Lists again, and waits until everything that the API server has now is reported.
    pub async fn again(&self) {
        let mut number = 0;
        self.wanted.send_modify(|wanted| {
            *wanted += 1;
            number = *wanted;
        });
        let mut done = self.done.subscribe();
        // `wait_for` cannot fail, because the sender lives in `self`.
        let _done = done.wait_for(|done| *done >= number).await;
    }
}

/// The lists that a leader may request.
#[derive(Debug, Default)]
pub struct Lists {
    /// Pods with kerf's label.
    pub pods: List,
    /// Bound pods without kerf's label.
    pub others: List,
    pub nodes: List,
}
