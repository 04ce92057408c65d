//! Applies the control file to a call on its way into the driver and back: counting, hangs, delays and faults, in this
//! order.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

use crate::code::{NvmlCode, Outcome};
use crate::control::MockControl;
use crate::fault::Strike;
use crate::session::Call;
use crate::state::{HangingCall, MockState};
use crate::store::View;

/// How often a hanging call checks whether it may continue.
const HANG_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What happens to a call after it has taken effect.
pub(crate) struct Gate {
    gpu: Option<u32>,
    after: Option<Blow>,
}

/// A fault that strikes this call.
struct Blow {
    strike: Strike,
    after_effect: bool,
    /// The key under which the state counts the fault.
    key: String,
}

impl Call {
    /// Lets the call in, or fails it. `gpu` is the GPU that it names.
    pub(crate) fn enter(&self, gpu: Option<u32>) -> Outcome<Gate> {
        let mut view = self.store.view()?;
        if view.control.count_calls {
            self.count()?;
        }
        if view.control.hangs(self.function) {
            self.wait_while(gpu, |view| view.control.hangs(self.function))?;
            view = self.store.view()?;
        }
        let delay = view.control.delay_of(self.function);
        if !delay.is_zero() {
            std::thread::sleep(delay);
            view = self.store.view()?;
        }
        let mut after = self.blow(&view, gpu)?;
        if let Some(now) = after.take_if(|blow| !blow.after_effect) {
            self.strike(gpu, &now)?;
        }
        Ok(Gate { gpu, after })
    }

    /// Returns the call's outcome, or the fault's. An error of the call itself stays.
    pub(crate) fn leave<T>(&self, gate: Gate, outcome: Outcome<T>) -> Outcome<T> {
        let Gate { gpu, after: Some(blow) } = gate else { return outcome };
        let struck = self.strike(gpu, &blow);
        outcome.and_then(|value| struck.map(|()| value))
    }

    /// The code of an uncounted fault for one of `gpus`, which ends a wait on several GPUs.
    pub(crate) fn lost(&self, control: &MockControl, gpus: &BTreeSet<u32>) -> Option<NvmlCode> {
        control.faults.iter().find_map(|fault| match fault.strike {
            Strike::Code(code) if fault.limit().is_none() => {
                let gpu = fault.gpu.filter(|gpu| gpus.contains(gpu))?;
                fault.strikes(self.function, Some(gpu)).then_some(code)
            }
            _ => None,
        })
    }

    fn count(&self) -> Outcome<()> {
        self.store.update(|state, _| {
            *state.calls.entry(self.function.to_owned()).or_insert(0) += 1;
            Ok(())
        })
    }

    /// The fault that strikes this call. A counted one is counted.
    fn blow(&self, view: &View, gpu: Option<u32>) -> Outcome<Option<Blow>> {
        let Some(fault) = view.control.fault_for(self.function, gpu, &view.state.faults_struck) else {
            return Ok(None);
        };
        if fault.limit().is_some() {
            return self.store.update(|state, control| Ok(count_down(state, control, self.function, gpu)));
        }
        Ok(Some(Blow { strike: fault.strike, after_effect: fault.after_effect, key: fault.key() }))
    }

    fn strike(&self, gpu: Option<u32>, blow: &Blow) -> Outcome<()> {
        match blow.strike {
            Strike::Code(code) => Err(code),
            Strike::Kill => die(),
            Strike::Slow(millis) => {
                std::thread::sleep(Duration::from_millis(millis));
                Ok(())
            }
            Strike::Hang => self.wait_while(gpu, |view| view.control.has_fault(&blow.key)),
        }
    }

    /// Waits while `hangs` is true. Meanwhile the state lists the call.
    fn wait_while(&self, gpu: Option<u32>, hangs: impl Fn(&View) -> bool) -> Outcome<()> {
        let _listed = Listed::enter(self, gpu)?;
        while hangs(&self.store.view()?) {
            std::thread::sleep(HANG_POLL_INTERVAL);
        }
        Ok(())
    }
}

/// Counts a counted fault; `None` if another process used it up meanwhile. Drops the counts of removed faults.
fn count_down(
    state: &mut MockState,
    control: &MockControl,
    function: &str,
    gpu: Option<u32>,
) -> Option<Blow> {
    state.faults_struck.retain(|key, _| control.has_fault(key));
    let fault = control.fault_for(function, gpu, &state.faults_struck)?;
    *state.faults_struck.entry(fault.key()).or_insert(0) += 1;
    Some(Blow { strike: fault.strike, after_effect: fault.after_effect, key: fault.key() })
}

/// Kills this process as `kill -9` does.
fn die() -> ! {
    // A process may always kill itself, and the call does not return.
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::abort()
}

/// An entry among the state's hanging calls, which is removed at the end of its scope.
struct Listed<'a> {
    call: &'a Call,
    line: HangingCall,
}

impl<'a> Listed<'a> {
    /// Adds the entry, and removes those of processes that were killed while they waited.
    fn enter(call: &'a Call, gpu: Option<u32>) -> Outcome<Listed<'a>> {
        let line = HangingCall { pid: std::process::id(), function: call.function.to_owned(), gpu };
        call.store.update(|state, _| {
            state.hanging.retain(HangingCall::is_running);
            state.hanging.push(line.clone());
            Ok(())
        })?;
        Ok(Listed { call, line })
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        // Without the files the entry cannot be removed, but then nothing reads it either.
        let _ = self.call.store.update(|state, _| {
            if let Some(at) = state.hanging.iter().position(|line| *line == self.line) {
                state.hanging.remove(at);
            }
            Ok(())
        });
    }
}
