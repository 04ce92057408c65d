//! Pointers that C callers pass in. Only this file dereferences them.
//!
//! Each type is a plain pointer by layout (`repr(transparent)`) and exists only as an argument of an exported function.
//! NVML's contract makes them sound to dereference: a pointer is null, or valid for what the function's documentation
//! says is read or written through it. Null is an invalid argument everywhere except in `OutList`.

use std::ffi::{CStr, c_char, c_uint};

use crate::code::{NvmlCode, Outcome};

macro_rules! copyable {
    ($($name:ident),*) => {$(
        impl<T> Clone for $name<T> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T> Copy for $name<T> {}
    )*};
}
copyable!(Out, OutList, In);

/// A pointer for one value to write.
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Rejects null before the call does anything.
    pub(super) fn check(self) -> Outcome<()> {
        if self.0.is_null() { Err(NvmlCode::INVALID_ARGUMENT) } else { Ok(()) }
    }

    pub(super) fn put(self, value: T) -> Outcome<()> {
        self.check()?;
        // SAFETY: not null, so the caller gave room for one T.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }
}

impl<T: Copy> Out<T> {
    /// The value that the caller has set, for arguments that are read and written.
    pub(super) fn get(self) -> Outcome<T> {
        self.check()?;
        // SAFETY: not null, and only used where NVML says that the caller sets the value first.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

/// A pointer for an array to write; null only requests its length.
#[repr(transparent)]
pub(super) struct OutList<T>(*mut T);

impl<T: Copy> OutList<T> {
    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes all of `values`, for which the caller must have room.
    pub(super) fn fill(self, values: &[T]) -> Outcome<()> {
        if self.0.is_null() {
            return if values.is_empty() { Ok(()) } else { Err(NvmlCode::INVALID_ARGUMENT) };
        }
        for (n, &value) in values.iter().enumerate() {
            // SAFETY: not null, and the caller's buffer holds at least as many as the caller or NVML's rule for
            // this function says, which is what `values` was limited to.
            unsafe { self.0.add(n).write_unaligned(value) };
        }
        Ok(())
    }

    /// Changes each of the first `count` entries in place.
    pub(super) fn change_each(self, count: usize, change: impl Fn(&mut T)) -> Outcome<()> {
        if self.0.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        for n in 0..count {
            // SAFETY: not null, and the caller says that there are `count` entries, set by it.
            let mut entry = unsafe { self.0.add(n).read_unaligned() };
            change(&mut entry);
            // SAFETY: the same entry.
            unsafe { self.0.add(n).write_unaligned(entry) };
        }
        Ok(())
    }

    /// The protocol of NVML's process lists: `count` is the room on input and the number on output.
    pub(super) fn fill_counted(self, count: Out<c_uint>, values: &[T]) -> Outcome<()> {
        let room = count.get()? as usize;
        count.put(u32::try_from(values.len()).unwrap_or(u32::MAX))?;
        if room < values.len() || (self.is_null() && !values.is_empty()) {
            return Err(NvmlCode::INSUFFICIENT_SIZE);
        }
        self.fill(values)
    }

    /// The protocol of NVML's placement lists: null requests the number. A driver ignores the room that the caller
    /// states. The mock writes no more than that.
    pub(super) fn fill_up_to(self, count: Out<c_uint>, values: &[T]) -> Outcome<()> {
        let room = count.get()? as usize;
        count.put(u32::try_from(values.len()).unwrap_or(u32::MAX))?;
        if self.is_null() {
            return Ok(());
        }
        self.fill(&values[..room.min(values.len())])
    }
}

/// A pointer to one value to read.
#[repr(transparent)]
pub(super) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(super) fn get(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so it points to a T that the caller set.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

/// A pointer to a C string to read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct TextIn(*const c_char);

impl TextIn {
    pub(super) fn get(self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so it is a NUL-terminated string.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| NvmlCode::INVALID_ARGUMENT)
    }
}

/// A buffer for a C string.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct TextOut(*mut c_char);

impl TextOut {
    /// Writes text and NUL, or nothing if `length` is too short for both.
    pub(super) fn put(self, length: c_uint, text: &str) -> Outcome<()> {
        if self.0.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        if (length as usize) <= text.len() {
            return Err(NvmlCode::INSUFFICIENT_SIZE);
        }
        // SAFETY: the buffer has `length` bytes, which is more than the text's.
        unsafe {
            self.0.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
            self.0.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// A structure that begins with a version word, which determines what to write.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Versioned(*mut c_uint);

/// NVML's version word of a structure: its size, and the version in the highest byte.
pub(super) const fn version_word<T>(version: c_uint) -> c_uint {
    // Every structure of NVML is far below 16 MiB, so the size is never truncated.
    #[expect(clippy::cast_possible_truncation, reason = "sizes are asserted in layout.rs")]
    let size = size_of::<T>() as c_uint;
    size | (version << 24)
}

impl Versioned {
    pub(super) fn version(self) -> Outcome<c_uint> {
        if self.0.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and every such structure begins with the word, set by the caller.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Writes the structure of the caller's version word, which was checked before.
    pub(super) fn put<T>(self, value: T) -> Outcome<()> {
        if self.0.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        // SAFETY: the version word carries the size of T, so the caller has room for it.
        unsafe { self.0.cast::<T>().write_unaligned(value) };
        Ok(())
    }
}

/// Text as a fixed array of C characters, truncated to leave room for NUL.
pub(super) fn characters<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *to = from.cast_signed();
    }
    array
}
