//! Faults: calls that fail, never return, or kill their process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::code::NvmlCode;

/// Matches every function in a fault, a delay or a hang.
pub const ANY_FUNCTION: &str = "*";

/// What a fault does to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    Code(NvmlCode),
    /// The calling process is killed by SIGKILL.
    Kill,
    /// The call does not return while the fault is in the control file.
    Hang,
    /// The call takes this many milliseconds longer.
    Slow(u64),
}

/// When a kill strikes, relative to the call's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KillMoment {
    Before,
    /// Right after the effect: the state is written, and the caller never sees the answer.
    After,
}

/// A fault for the calls of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Document", into = "Document")]
pub struct Fault {
    /// The exported name, such as `nvmlDeviceCreateGpuInstanceWithPlacement`, or `*`.
    pub function: String,
    /// What it does to the calls.
    pub strike: Strike,
    /// Whether the call takes effect first, as if the answer was lost.
    pub after_effect: bool,
    /// How many calls are struck. If left out: all of them, and one for a kill.
    pub times: Option<u32>,
    /// The GPU's index. If left out: all GPUs, and calls that name no GPU.
    pub gpu: Option<u32>,
    /// Distinguishes two faults of equal content. The count belongs to this id.
    pub id: Option<String>,
}

/// Numbers the faults of this process, so that a second equal fault has its own count.
static FAULTS_MADE: AtomicU64 = AtomicU64::new(1);

impl Fault {
    fn on_function(function: impl Into<String>, strike: Strike) -> Fault {
        let number = FAULTS_MADE.fetch_add(1, Ordering::Relaxed);
        let id = Some(format!("{}-{number}", std::process::id()));
        Fault { function: function.into(), strike, after_effect: false, times: None, gpu: None, id }
    }

    /// Every call of `function` returns `code`.
    #[must_use]
    pub fn new(function: impl Into<String>, code: NvmlCode) -> Fault {
        Fault::on_function(function, Strike::Code(code))
    }

    /// Kills the next process that calls `function`. Later callers are not killed.
    #[must_use]
    pub fn kill(function: impl Into<String>, moment: KillMoment) -> Fault {
        Fault { after_effect: moment == KillMoment::After, ..Fault::on_function(function, Strike::Kill) }
    }

    /// Calls of `function` hang until a control file without this fault is written.
    #[must_use]
    pub fn hang(function: impl Into<String>) -> Fault {
        Fault::on_function(function, Strike::Hang)
    }

    /// Calls of `function` take `time` longer.
    #[must_use]
    pub fn slow(function: impl Into<String>, time: Duration) -> Fault {
        Fault::on_function(function, Strike::Slow(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Every call on the GPU at that index fails as if the GPU had fallen off the bus.
    #[must_use]
    pub fn gpu_lost(index: u32) -> Fault {
        Fault::new(ANY_FUNCTION, NvmlCode::GPU_IS_LOST).on_gpu(index)
    }

    /// Strikes only the first `times` calls.
    #[must_use]
    pub fn times(mut self, times: u32) -> Fault {
        self.times = Some(times);
        self
    }

    /// Strikes only calls on the GPU at that index.
    #[must_use]
    pub fn on_gpu(mut self, index: u32) -> Fault {
        self.gpu = Some(index);
        self
    }

    /// Lets the call take effect before it is struck.
    #[must_use]
    pub fn after_effect(mut self) -> Fault {
        self.after_effect = true;
        self
    }

    /// The key under which the state counts this fault.
    pub(crate) fn key(&self) -> String {
        let content = || format!("{}/{:?}/{:?}/{:?}", self.function, self.strike, self.limit(), self.gpu);
        self.id.clone().unwrap_or_else(content)
    }

    /// How many calls it strikes; `None` for all.
    pub(crate) fn limit(&self) -> Option<u32> {
        self.times.or((self.strike == Strike::Kill).then_some(1))
    }

    pub(crate) fn strikes(&self, function: &str, gpu: Option<u32>) -> bool {
        names(&self.function, function) && (self.gpu.is_none() || self.gpu == gpu)
    }

    /// Whether it has strikes left, by how often each fault has struck.
    pub(crate) fn is_left(&self, struck: &BTreeMap<String, u32>) -> bool {
        self.limit().is_none_or(|limit| struck.get(&self.key()).copied().unwrap_or(0) < limit)
    }
}

pub(crate) fn names(pattern: &str, function: &str) -> bool {
    pattern == ANY_FUNCTION || pattern == function
}

/// A fault in the form of the control file: one of `code`, `kill`, `hang` and `slow_ms`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    function: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<NvmlCode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kill: Option<KillMoment>,
    #[serde(default, skip_serializing_if = "is_false")]
    hang: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slow_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "is_false")]
    after_effect: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    times: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpu: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field by reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl TryFrom<Document> for Fault {
    type Error = String;

    fn try_from(document: Document) -> Result<Fault, String> {
        let Document { function, code, kill, hang, slow_ms, after_effect, times, gpu, id } = document;
        let (strike, after_effect) = match (code, kill, hang, slow_ms) {
            (Some(code), None, false, None) => (Strike::Code(code), after_effect),
            (None, None, true, None) => (Strike::Hang, after_effect),
            (None, None, false, Some(millis)) => (Strike::Slow(millis), after_effect),
            (None, Some(moment), false, None) if !after_effect => (Strike::Kill, moment == KillMoment::After),
            (None, Some(_), false, None) => {
                return Err(format!(
                    "the fault of {function}: kill says when by itself; leave after_effect out"
                ));
            }
            _ => return Err(format!("the fault of {function}: give one of code, kill, hang and slow_ms")),
        };
        Ok(Fault { function, strike, after_effect, times, gpu, id })
    }
}

impl From<Fault> for Document {
    fn from(fault: Fault) -> Document {
        let Fault { function, strike, after_effect, times, gpu, id } = fault;
        let moment = if after_effect { KillMoment::After } else { KillMoment::Before };
        let (code, kill, slow_ms) = match strike {
            Strike::Code(code) => (Some(code), None, None),
            Strike::Kill => (None, Some(moment), None),
            Strike::Hang => (None, None, None),
            Strike::Slow(millis) => (None, None, Some(millis)),
        };
        let hang = strike == Strike::Hang;
        Document {
            function,
            code,
            kill,
            hang,
            slow_ms,
            after_effect: after_effect && kill.is_none(),
            times,
            gpu,
            id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Fault, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn every_fault_is_read_as_it_was_written() {
        let all = [
            Fault::new("f", NvmlCode::IN_USE).times(2).on_gpu(0).after_effect(),
            Fault::slow("f", Duration::from_millis(20)).on_gpu(1),
            Fault::kill("f", KillMoment::Before),
            Fault::kill("f", KillMoment::After).on_gpu(1),
            Fault::hang("f").times(1),
            Fault::hang("f").after_effect(),
            Fault::gpu_lost(3),
        ];
        for fault in all {
            let text = serde_json::to_string(&fault).unwrap();
            assert_eq!(read(&text).unwrap(), fault, "{text}");
        }
    }

    #[test]
    fn a_fault_does_exactly_one_thing() {
        for wrong in [
            r#"{"function": "f"}"#,
            r#"{"function": "f", "code": 19, "kill": "before"}"#,
            r#"{"function": "f", "hang": true, "code": 19}"#,
            r#"{"function": "f", "kill": "before", "after_effect": true}"#,
            r#"{"function": "f", "code": 19, "gpus": [0]}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_kill_strikes_once_unless_it_says_otherwise() {
        let kill = read(r#"{"function": "f", "kill": "after", "id": "k"}"#).unwrap();
        assert!(kill.is_left(&BTreeMap::new()));
        assert!(!kill.is_left(&BTreeMap::from([("k".to_owned(), 1)])));
        assert!(kill.times(2).is_left(&BTreeMap::from([("k".to_owned(), 1)])));
        assert!(Fault::hang("f").is_left(&BTreeMap::from([("k".to_owned(), 99)])));
    }

    #[test]
    fn two_faults_made_alike_are_counted_apart() {
        let [a, b] = [Fault::new("f", NvmlCode::TIMEOUT), Fault::new("f", NvmlCode::TIMEOUT)];
        assert_ne!(a.key(), b.key());
    }
}
