//! The note of an Event, which the API server bounds.

/// The most bytes of an Event's note (`events.k8s.io/v1`).
pub const LONGEST_NOTE: usize = 1024;

/// The note, with its end cut off where it is too long, which shows.
#[must_use]
pub fn shortened(mut note: String) -> String {
    if note.len() > LONGEST_NOTE {
        note.truncate(note.floor_char_boundary(LONGEST_NOTE - "…".len()));
        note.push('…');
    }
    note
}
