//! The events that may happen in a world, one at a time.

use std::fmt;

/// An event. Leaders, nodes, pods, Bindings and stray orders are given by their index in the world's lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// The scheduler asks a leader to bind a pod to a node.
    Bind { leader: usize, pod: usize, node: usize },
    /// A leader orders the release of a reservation that no bind uses.
    Release { leader: usize, pod: usize, node: usize },
    /// A leader reads the next message of an agent.
    Read { leader: usize, node: usize },
    /// A leader reads two messages, and its binds see the answer before the change that was sent ahead of it.
    ReadTwo { leader: usize, node: usize },
    /// A leader runs the timers that became due while it was frozen.
    Timers { leader: usize },
    /// A replica takes the Lease, which has expired.
    TakeLease { leader: usize },
    /// A frozen leader continues.
    Wake { leader: usize },

    /// An agent connects to a leader. If there was a connection, the leader notices its end.
    Dial { leader: usize, node: usize },
    /// An agent reads the next order of a leader.
    Order { leader: usize, node: usize },
    /// An agent reads an order of a connection that has ended.
    Stray { order: usize },
    /// An agent writes its ledger to the disk. Answers that wait for it are sent.
    Sync { node: usize },
    /// All slices that a node should have are created, as far as they can be.
    Make { node: usize },
    /// An agent's watch shows the pods of its node.
    Watch { node: usize },
    /// The lookup of a pod is answered.
    LookedUp { node: usize, look_up: usize },

    /// The kubelet lists the slices that exist.
    Acknowledge { node: usize },
    /// The kubelet gives a bound pod its slices.
    Allocate { node: usize, pod: usize },
    /// The containers of a gone pod end.
    Free { node: usize, pod: usize },

    /// The API server executes a Binding: it binds the pod, or answers why not.
    Land { binding: usize },
    /// The leader reads the outcome of a Binding.
    Answer { binding: usize },
    /// A pod is created that has the name of a gone one.
    Create { pod: usize },

    /// Time passes, to the next moment at which something is due.
    Pass,

    /// An agent reads an order, and will read it again.
    Double { leader: usize, node: usize },
    /// A connection is cut. The agent notices it at once, the leader when the agent dials again.
    Cut { leader: usize, node: usize },
    /// An agent's process ends, and starts from what is on its disk.
    CrashAgent { node: usize },
    /// A leader's process ends, and starts as a follower with empty state.
    CrashLeader { leader: usize },
    /// A leader does nothing for a while.
    Freeze { leader: usize },
    /// An agent cannot write to its disk.
    DiskFails { node: usize },
    /// A slice cannot be created.
    MakeFails { node: usize },
    /// A kubelet restarts, and forgets the slices that no container holds.
    RestartKubelet { node: usize },
    /// The lookup of a pod fails.
    LookUpFails { node: usize, look_up: usize },
    /// The API server refuses a Binding that it could execute.
    Refuse { binding: usize },
    /// The answer to a Binding is lost.
    LoseAnswer { binding: usize },
    /// A pod is deleted, by force if it runs: its containers may end later.
    Delete { pod: usize },
    /// A pod is bound to a node outside the world.
    Move { pod: usize },
}

impl Event {
    /// Whether it is a fault or an action of a user. A world has a limited number of these.
    pub fn is_upset(self) -> bool {
        matches!(
            self,
            Self::Double { .. }
                | Self::Cut { .. }
                | Self::CrashAgent { .. }
                | Self::CrashLeader { .. }
                | Self::Freeze { .. }
                | Self::DiskFails { .. }
                | Self::MakeFails { .. }
                | Self::RestartKubelet { .. }
                | Self::LookUpFails { .. }
                | Self::Refuse { .. }
                | Self::LoseAnswer { .. }
                | Self::Delete { .. }
                | Self::Move { .. }
        )
    }

    /// A number for the kind of event, below [`Self::KINDS`].
    pub fn kind(self) -> usize {
        match self {
            Self::Bind { .. } => 0,
            Self::Release { .. } => 1,
            Self::Read { .. } => 2,
            Self::ReadTwo { .. } => 3,
            Self::Timers { .. } => 4,
            Self::TakeLease { .. } => 5,
            Self::Wake { .. } => 6,
            Self::Dial { .. } => 7,
            Self::Order { .. } => 8,
            Self::Stray { .. } => 9,
            Self::Sync { .. } => 10,
            Self::Make { .. } => 11,
            Self::Watch { .. } => 12,
            Self::LookedUp { .. } => 13,
            Self::Allocate { .. } => 14,
            Self::Free { .. } => 15,
            Self::Land { .. } => 16,
            Self::Answer { .. } => 17,
            Self::Create { .. } => 18,
            Self::Pass => 19,
            Self::Double { .. } => 20,
            Self::Cut { .. } => 21,
            Self::CrashAgent { .. } => 22,
            Self::CrashLeader { .. } => 23,
            Self::Freeze { .. } => 24,
            Self::DiskFails { .. } => 25,
            Self::MakeFails { .. } => 26,
            Self::LookUpFails { .. } => 27,
            Self::Refuse { .. } => 28,
            Self::LoseAnswer { .. } => 29,
            Self::Delete { .. } => 30,
            Self::Move { .. } => 31,
            Self::Acknowledge { .. } => 32,
            Self::RestartKubelet { .. } => 33,
        }
    }

    /// The number of kinds of events.
    pub const KINDS: usize = 34;
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bind { leader, pod, node } => {
                write!(f, "L{leader} is asked to bind {} to N{node}", name(pod))
            }
            Self::Release { leader, pod, node } => {
                write!(f, "L{leader} orders N{node} to release {}", name(pod))
            }
            Self::Read { leader, node } => write!(f, "L{leader} reads from N{node}"),
            Self::ReadTwo { leader, node } => write!(f, "L{leader} reads two messages from N{node}"),
            Self::Timers { leader } => write!(f, "L{leader} runs its timers"),
            Self::TakeLease { leader } => write!(f, "L{leader} takes the Lease"),
            Self::Wake { leader } => write!(f, "L{leader} wakes"),
            Self::Dial { leader, node } => write!(f, "N{node} connects to L{leader}"),
            Self::Order { leader, node } => write!(f, "N{node} reads from L{leader}"),
            Self::Stray { .. } => write!(f, "an order of an earlier connection is read"),
            Self::Sync { node } => write!(f, "N{node} writes its ledger to the disk"),
            Self::Make { node } => write!(f, "N{node} makes its slices"),
            Self::Watch { node } => write!(f, "N{node} is shown its pods"),
            Self::LookedUp { node, .. } => write!(f, "N{node} looks a pod up"),
            Self::Acknowledge { node } => write!(f, "the kubelet of N{node} takes note of its slices"),
            Self::Allocate { node, pod } => write!(f, "the kubelet of N{node} starts {}", name(pod)),
            Self::Free { node, pod } => write!(f, "the containers of {} end on N{node}", name(pod)),
            Self::Land { .. } => write!(f, "the API server executes a Binding"),
            Self::Answer { .. } => write!(f, "a leader reads the answer to a Binding"),
            Self::Create { pod } => write!(f, "a pod of the name of {} is created", name(pod)),
            Self::Pass => write!(f, "time passes"),
            Self::Double { leader, node } => {
                write!(f, "N{node} reads an order of L{leader} for the first time of two")
            }
            Self::Cut { leader, node } => write!(f, "the connection between L{leader} and N{node} is cut"),
            Self::CrashAgent { node } => write!(f, "the agent of N{node} crashes and starts"),
            Self::CrashLeader { leader } => write!(f, "L{leader} crashes and starts"),
            Self::Freeze { leader } => write!(f, "L{leader} freezes"),
            Self::DiskFails { node } => write!(f, "N{node} cannot write to its disk"),
            Self::MakeFails { node } => write!(f, "N{node} cannot make a slice"),
            Self::RestartKubelet { node } => write!(f, "the kubelet of N{node} restarts"),
            Self::LookUpFails { node, .. } => write!(f, "a look-up of N{node} fails"),
            Self::Refuse { .. } => write!(f, "the API server refuses a Binding"),
            Self::LoseAnswer { .. } => write!(f, "the answer to a Binding is lost"),
            Self::Delete { pod } => write!(f, "{} is deleted", name(pod)),
            Self::Move { pod } => write!(f, "{} is bound to a node of others", name(pod)),
        }
    }
}

/// A pod's name in a trace. Pods of the same name, one after the other, have different places in the list.
fn name(pod: usize) -> String {
    format!("pod {pod}")
}
