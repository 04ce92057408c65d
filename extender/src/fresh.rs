//! What a new leader reads anew, for the watch of a follower may be late: what pods hold of static nodes. Where there is none, nothing
//! is listed. Why nothing else may be old is said in `cluster_index/leading.rs`.

use crate::cluster_index::ClusterIndex;
use crate::term::Term;
use std::sync::Arc;

/// Reads what is to be read anew, once it is there, until the term ends.
pub async fn run(term: Arc<Term>) {
    tokio::select! {
        () = term.stop.cancelled() => {}
        () = statics(&term) => {}
    }
}

async fn statics(term: &Term) {
    term.until(ClusterIndex::has_unread_statics).await;
    let lists = &term.cluster.lists;
    tokio::join!(lists.nodes.again(), lists.pods.again(), lists.others.again());
    term.with(ClusterIndex::statics_read);
}
