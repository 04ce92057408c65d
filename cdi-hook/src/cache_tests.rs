//! glibc's own `ldconfig` makes and reads these caches, because only it can judge them.

use super::*;
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use std::process::Command;

const DRIVER: [&str; 4] = [
    "/usr/lib64/libcuda.so.1",
    "/usr/lib64/libcuda.so",
    "/usr/lib64/libnvidia-ml.so.1",
    "/opt/driver/libnvidia-gpucomp.so.580.65.06",
];

fn owned(paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

/// This machine's cache; `None` on a machine without glibc.
fn machines() -> Option<Vec<u8>> {
    fs::read("/etc/ld.so.cache").ok().filter(|cache| newer(cache).is_ok())
}

/// The entries that `ldconfig -p` prints: name and path, in the cache's order.
fn shown(cache: &[u8]) -> Vec<(String, String)> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), cache).unwrap();
    let output = Command::new("/sbin/ldconfig").arg("-p").arg("-C").arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.trim().split_once(" => "));
    let name = |words: &str| words.split(' ').next().unwrap().to_owned();
    lines.map(|(words, path)| (name(words), path.to_owned())).collect()
}

fn is_sorted(cache: &[u8]) -> bool {
    let cache = Cache::read(cache).unwrap();
    let names: Vec<_> = cache.entries.iter().map(|entry| cache.name(entry).unwrap()).collect();
    names.is_sorted_by(|left, right| compare(left, right) != Ordering::Less)
}

#[test]
fn ldconfig_shows_the_added_libraries_and_all_earlier_entries() {
    let Some(before) = machines().filter(|_| Path::new("/sbin/ldconfig").exists()) else {
        eprintln!("SKIPPED: this machine has no glibc");
        return;
    };
    assert!(is_sorted(&before), "the order is understood");
    let after = add(Some(&before), &owned(&DRIVER)).unwrap().unwrap();
    assert!(is_sorted(&after));
    let (old, new) = (shown(&before), shown(&after));
    let is_ours = |entry: &&(String, String)| DRIVER.contains(&entry.1.as_str());
    assert_eq!(new.iter().filter(|entry| !is_ours(entry)).cloned().collect::<Vec<_>>(), old);
    for path in DRIVER {
        assert!(new.contains(&(name(path).to_owned(), path.to_owned())), "{path}");
    }
    assert_eq!(add(Some(&after), &owned(&DRIVER)), Ok(None), "nothing is added twice");
    let own = number(&before, EXTENSIONS).unwrap();
    assert_eq!(own == 0, number(&after, EXTENSIONS).unwrap() == 0);
    let made = add(None, &owned(&DRIVER)).unwrap().unwrap();
    assert_eq!(shown(&made).len(), DRIVER.len(), "an image without a cache");
}

#[test]
fn an_entry_of_the_image_stays_before_an_added_one() {
    let own = add(None, &owned(&["/usr/local/cuda/compat/libcuda.so.1"])).unwrap().unwrap();
    let both = add(Some(&own), &owned(&["/usr/lib64/libcuda.so.1"])).unwrap().unwrap();
    let cache = Cache::read(&both).unwrap();
    let paths: Vec<_> = cache.entries.iter().map(|entry| cache.string(entry, PATH).unwrap()).collect();
    assert_eq!(paths, [&b"/usr/local/cuda/compat/libcuda.so.1"[..], b"/usr/lib64/libcuda.so.1"]);
}

#[test]
fn offsets_of_hwcaps_names_move_with_their_strings() {
    let mut cache = add(None, &owned(&["/lib/libx.so.1"])).unwrap().unwrap();
    let (word, start) = (cache.len(), cache.len() + 4);
    cache.extend(b"v3\0\0");
    put(&mut cache, EXTENSIONS, start).unwrap();
    let content = start + EXTENSION_HEADER + SECTION;
    for value in [EXTENSION_MAGIC, 1, HWCAPS, 0, content, 4, word] {
        cache.extend(u32::try_from(value).unwrap().to_le_bytes());
    }
    let made = add(Some(&cache), &owned(&DRIVER)).unwrap().unwrap();
    let section = number(&made, EXTENSIONS).unwrap() + EXTENSION_HEADER;
    let offset = number(&made, number(&made, section + 8).unwrap()).unwrap();
    assert_eq!(&made[offset..offset + 3], b"v3\0");
}

#[test]
fn the_newer_part_of_a_cache_with_both_formats_is_read() {
    let newer = add(None, &owned(&["/lib/libx.so.1"])).unwrap().unwrap();
    let mut both = OLD_MAGIC.to_vec();
    both.resize(OLD_HEADER + OLD_ENTRY, 0);
    both[12] = 1;
    both.resize(both.len().next_multiple_of(8), 0);
    both.extend(&newer);
    assert_eq!(add(Some(&both), &owned(&DRIVER)), add(Some(&newer), &owned(&DRIVER)));
}

#[test]
fn digits_are_compared_as_numbers() {
    let ascending = ["liba.so", "liba.so.1", "liba.so.2", "liba.so.10", "liba1.so", "liba10.so"];
    for pair in ascending.windows(2) {
        assert_eq!(compare(pair[0].as_bytes(), pair[1].as_bytes()), Ordering::Less, "{pair:?}");
        assert_eq!(compare(pair[1].as_bytes(), pair[0].as_bytes()), Ordering::Greater, "{pair:?}");
    }
    assert_eq!(compare(b"libcuda.so.1", b"libcuda.so.1"), Ordering::Equal);
}

#[test]
fn an_unreadable_cache_is_refused_with_the_reason() {
    let mut big = add(None, &owned(&DRIVER)).unwrap().unwrap();
    big[FLAGS] = 3;
    let cases: [(&[u8], Unknown); 4] = [
        (b"", Unknown::Format),
        (b"ELF", Unknown::Format),
        (MAGIC, Unknown::Truncated),
        (&big, Unknown::Endianness),
    ];
    for (cache, why) in cases {
        assert_eq!(add(Some(cache), &owned(&DRIVER)), Err(why));
    }
}

proptest! {
    /// A container's file may have any content, so no content may make the hook panic.
    #[test]
    fn a_broken_cache_never_makes_the_hook_panic(
        at in any::<prop::sample::Index>(), value in any::<u32>(), cut in any::<prop::sample::Index>()
    ) {
        let mut cache = machines().unwrap_or_else(|| add(None, &owned(&DRIVER)).unwrap().unwrap());
        let at = at.index(cache.len() - 4);
        cache[at..at + 4].copy_from_slice(&value.to_le_bytes());
        drop(add(Some(&cache), &owned(&DRIVER)));
        cache.truncate(cut.index(cache.len()));
        drop(add(Some(&cache), &owned(&DRIVER)));
    }

    #[test]
    fn libraries_in_any_order_can_all_be_found(names in prop::collection::vec("lib[a-c0-9]{1,4}\\.so(\\.[0-9]{1,3})?", 1..20)) {
        let paths: Vec<String> = names.iter().map(|name| format!("/lib/{name}")).collect();
        let made = add(None, &paths).unwrap().unwrap();
        prop_assert!(is_sorted(&made));
        prop_assert_eq!(add(Some(&made), &paths), Ok(None));
    }
}
