//! Paths of fields in a policy document, so that a mistake is reported with its field and found in the file.

use std::fmt;

/// One step of a path to a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Into a mapping, by its key.
    Key(String),
    /// Into a list, by index from 0.
    Index(usize),
}

/// The path of a field from the document's root, as in `spec.match.namespaces[1]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Field(Vec<Step>);

impl Field {
    /// The field at these keys from the root; dots separate the keys.
    #[must_use]
    pub fn from_dotted(dotted: &str) -> Self {
        Self(dotted.split('.').map(|key| Step::Key(key.to_owned())).collect())
    }

    /// The field under `key` in the mapping at this field.
    #[must_use]
    pub fn key(&self, key: impl Into<String>) -> Self {
        self.then(Step::Key(key.into()))
    }

    /// The item at `index` in the list at this field.
    #[must_use]
    pub fn item(&self, index: usize) -> Self {
        self.then(Step::Index(index))
    }

    fn then(&self, step: Step) -> Self {
        Self(self.0.iter().cloned().chain([step]).collect())
    }

    /// The steps of the path, from the document's root.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.0
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, step) in self.0.iter().enumerate() {
            match step {
                // Brackets keep the path unambiguous, because a label key contains dots itself.
                Step::Key(key) if key.contains(['.', '/']) => write!(f, "[{key}]")?,
                Step::Key(key) if place == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_written_as_users_point_at_it() {
        let labels = Field::from_dotted("spec.match.labels");
        assert_eq!(labels.key("team").to_string(), "spec.match.labels.team");
        assert_eq!(labels.key("example.com/team").to_string(), "spec.match.labels[example.com/team]");
        assert_eq!(
            Field::from_dotted("spec.gpus").item(2).key("kinds").item(0).to_string(),
            "spec.gpus[2].kinds[0]"
        );
    }
}
