//! The slices that one GPU can hold by its rule: those of a fixed layout, and the shares that fit in it together.

mod laid_out;
mod placement;
mod room;

pub use laid_out::laid_out;
pub(crate) use room::{Room, are_within};
