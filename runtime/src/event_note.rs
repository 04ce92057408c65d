//! The note of an Event, which the API server bounds.

/// The API server's limit in bytes for the note of an Event (`events.k8s.io/v1`).
pub const LONGEST_NOTE: usize = 1024;

/// Cuts a note to that limit; an ellipsis marks the cut.
#[must_use]
pub fn shortened(mut note: String) -> String {
    if note.len() > LONGEST_NOTE {
        note.truncate(note.floor_char_boundary(LONGEST_NOTE - "…".len()));
        note.push('…');
    }
    note
}
