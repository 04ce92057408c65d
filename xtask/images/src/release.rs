//! The origin of an image: version, revision, time and source. It comes from git and never from the clock, so that the
//! same commit gives the same bytes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use oci_spec::image::{
    ANNOTATION_CREATED, ANNOTATION_DESCRIPTION, ANNOTATION_LICENSES, ANNOTATION_REVISION, ANNOTATION_SOURCE,
    ANNOTATION_TITLE, ANNOTATION_VERSION,
};
use std::collections::HashMap;

use crate::catalog::Description;

/// The workspace's version, which the chart and the images share.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The variable that overrides the commit's time (reproducible-builds.org).
const EPOCH: &str = "SOURCE_DATE_EPOCH";

#[derive(Debug)]
pub struct Release {
    /// The commit, with `-dirty` if files differ from it.
    pub revision: String,
    pub created: Timestamp,
    /// The source's address, if a flag names it.
    pub source: Option<String>,
}

impl Release {
    pub fn from_git(root: &Path, source: Option<String>) -> anyhow::Result<Self> {
        let changed = !git(root, &["status", "--porcelain"])?.is_empty();
        let mut revision = git(root, &["rev-parse", "HEAD"])?;
        if changed {
            revision.push_str("-dirty");
        }
        let seconds = match std::env::var(EPOCH) {
            Ok(seconds) => seconds,
            Err(_) => git(root, &["log", "-1", "--format=%ct"])?,
        };
        let seconds: i64 =
            seconds.parse().with_context(|| format!("{EPOCH}: {seconds} is no number of seconds"))?;
        let created = Timestamp::from_second(seconds).with_context(|| format!("{EPOCH}: {seconds}"))?;
        ensure!(seconds >= 0, "{EPOCH}: {seconds} is before 1970");
        Ok(Self { revision, created, source })
    }

    pub fn spoken(&self) -> String {
        let (commit, dirty) =
            self.revision.split_once('-').map_or((&*self.revision, ""), |(commit, _)| (commit, "-dirty"));
        format!("{VERSION} ({}{dirty})", commit.get(..12).unwrap_or(commit))
    }

    pub fn seconds(&self) -> u64 {
        self.created.as_second().unsigned_abs()
    }

    pub fn labels(&self, image: &Description) -> HashMap<String, String> {
        let created = self.created.to_string();
        let labels = [
            (ANNOTATION_VERSION, Some(VERSION)),
            (ANNOTATION_REVISION, Some(&*self.revision)),
            (ANNOTATION_SOURCE, self.source.as_deref()),
            (ANNOTATION_LICENSES, Some(env!("CARGO_PKG_LICENSE"))),
            (ANNOTATION_TITLE, Some(image.title)),
            (ANNOTATION_DESCRIPTION, Some(image.purpose)),
            (ANNOTATION_CREATED, Some(&*created)),
        ];
        labels.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))).collect()
    }
}

fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output =
        Command::new("git").current_dir(root).args(arguments).output().context("failed to run git")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {}", arguments.join(" "), said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Image;

    fn release(revision: &str, source: Option<&str>) -> Release {
        let created = Timestamp::from_second(1_800_000_000).unwrap();
        Release { revision: revision.to_owned(), created, source: source.map(str::to_owned) }
    }

    #[test]
    fn a_version_has_the_commit_and_whether_files_differ() {
        let commit = "05b355c8390b73e78d4490dc5eb4b70e6f65a6d1";
        assert_eq!(release(commit, None).spoken(), format!("{VERSION} (05b355c8390b)"));
        assert_eq!(
            release(&format!("{commit}-dirty"), None).spoken(),
            format!("{VERSION} (05b355c8390b-dirty)")
        );
    }

    #[test]
    fn an_images_labels_have_its_origin() {
        let image = Image::Webhook.description();
        let labels = release("05b355c", Some("https://example.com/kerf")).labels(image);
        let of = |key: &str| labels.get(&format!("org.opencontainers.image.{key}")).map(String::as_str);
        assert_eq!(of("version"), Some(VERSION));
        assert_eq!(of("revision"), Some("05b355c"));
        assert_eq!(of("source"), Some("https://example.com/kerf"));
        assert_eq!(of("licenses"), Some("Apache-2.0"));
        assert_eq!(of("created"), Some("2027-01-15T08:00:00Z"));
        assert_eq!(of("title"), Some("kerf webhook"));
        assert_eq!(release("05b355c", None).labels(image).get(ANNOTATION_SOURCE), None);
    }
}
