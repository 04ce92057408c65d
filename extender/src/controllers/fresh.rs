//! Lists again what pods hold of static nodes when a term begins, because the watch of a follower may be late. If there
//! are no static nodes, nothing is listed. `cluster_index/terms.rs` explains why no other data may be stale.

use crate::cluster_index::ClusterIndex;
use crate::term::Term;
use std::sync::Arc;

/// Lists again once the first lists are there, until the term ends.
pub async fn run(term: Arc<Term>) {
    tokio::select! {
        () = term.stop.cancelled() => {}
        () = statics(&term) => {}
    }
}

async fn statics(term: &Term) {
    term.until(ClusterIndex::has_unread_static_nodes).await;
    let lists = &term.cluster.lists;
    tokio::join!(lists.nodes.again(), lists.pods.again(), lists.others.again());
    term.with(|index| index.nodes().set_static_nodes_read());
}
