//! The fault proxy on the CRI socket. It stands before the fake runtime and before the real
//! containerd alike, forwards gRPC byte for byte, records every call in order and, by rule, delays,
//! hangs, fails or loses calls and events, or runs a hook (kill the agent) around the n-th mutating
//! call.
//!
//! It knows HTTP/2 and gRPC's framing; of the messages it reads only what names the pod concerned.
//! A call that no rule matches is passed on unchanged, trailers and all; each connection has one of
//! its own behind it, and both end together, so that a dying runtime looks as it would without a
//! proxy.

mod call;
mod forward;
mod frames;

pub use call::{Call, MUTATING, PodRef};

use super::serve::{Served, on_socket};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::sync::watch;
use tonic::Code;

/// What happens to a matching call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Passed on after this long.
    Delay(Duration),
    /// Not passed on until the rule is lifted.
    Hang,
    /// Executed by the runtime; the answer is kept back until the rule is lifted.
    HangAnswer,
    /// Not executed; answered with this error.
    Fail(Code, &'static str),
    /// Executed by the runtime; answered with `Unavailable`.
    LoseAnswer,
}

/// What happens to runtime events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventFault {
    /// Passed on.
    #[default]
    None,
    /// Silently dropped while the stream stays up.
    Drop,
    /// Each passed on twice.
    Duplicate,
    /// Each kept back until the next one has been passed on; the last one stays away.
    Reorder,
}

/// Before or after the runtime executed a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The call never reaches the runtime.
    Before,
    /// The runtime has executed it; its answer never arrives.
    After,
}

/// Which calls a rule is for.
#[derive(Clone, Debug, Default)]
struct Filter {
    method: Option<&'static str>,
    pod: Option<String>,
}

struct Rule {
    id: u64,
    filter: Filter,
    fault: Fault,
    /// How often it still applies.
    left: usize,
}

struct Hook {
    mutating_call: usize,
    moment: Moment,
    run: Box<dyn FnOnce() + Send>,
}

type Witness = Arc<dyn Fn(&Call) + Send + Sync>;

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    witness: Option<Witness>,
    next_call: usize,
    mutating_calls: usize,
    /// A caller died while the runtime was at work for it.
    cut_short: bool,
    rules: Vec<Rule>,
    next_rule: u64,
    hook: Option<Hook>,
    events: EventFault,
    sandboxes: HashMap<String, PodRef>,
    containers: HashMap<String, PodRef>,
}

struct Shared {
    upstream: PathBuf,
    state: Mutex<State>,
    /// Counts changes of the rules, so that held calls look whether theirs was lifted.
    rules_changed: watch::Sender<u64>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// A running proxy. Dropping it cuts all its connections.
pub struct Proxy {
    socket: PathBuf,
    shared: Arc<Shared>,
    served: Option<Served>,
}

/// A rule in the making: `proxy.on("CreateContainer").pod("web").times(1).fail(...)`.
#[must_use]
pub struct RuleFor<'a> {
    proxy: &'a Proxy,
    filter: Filter,
    times: usize,
}

/// Names a rule, to lift it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(u64);

impl Proxy {
    /// Listens on `socket` and forwards to `upstream`.
    pub fn start(socket: &Path, upstream: &Path) -> Self {
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            state: Mutex::default(),
            rules_changed: watch::channel(0).0,
        });
        let mut proxy = Self { socket: socket.to_owned(), shared, served: None };
        proxy.reconnect();
        proxy
    }

    /// Cuts all connections and listens anew.
    pub fn reconnect(&mut self) {
        self.served = None;
        let shared = Arc::clone(&self.shared);
        self.served = Some(on_socket(&self.socket, move |stream| {
            forward::connection(stream, Arc::clone(&shared))
        }));
    }

    /// The socket that it listens on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Everything recorded so far, in the order of arrival.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.state().calls.clone()
    }

    /// The mutating calls recorded so far; the index is what [`Self::at_mutating_call`] counts.
    pub fn mutating_calls(&self) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.mutating.is_some()).collect()
    }

    /// How many calls of `method` were made for the pod whose name begins with `pod`.
    pub fn count(&self, method: &str, pod: &str) -> usize {
        let matches = |call: &&Call| call.method == method && call.is_for(pod);
        self.shared.state().calls.iter().filter(matches).count()
    }

    /// Whether a caller ever died while the runtime was at work for it.
    pub fn has_cut_short(&self) -> bool {
        self.shared.state().cut_short
    }

    /// How many mutating calls have no answer yet.
    pub fn calls_under_way(&self) -> usize {
        self.mutating_calls().iter().filter(|call| call.answered.is_none()).count()
    }

    /// Forgets what was recorded; mutating calls are counted from 0 again.
    pub fn forget_calls(&self) {
        let mut state = self.shared.state();
        state.calls.clear();
        state.mutating_calls = 0;
    }

    /// Begins a rule for calls of `method` (`"*"` for all).
    pub fn on(&self, method: &'static str) -> RuleFor<'_> {
        let method = (method != "*").then_some(method);
        RuleFor { proxy: self, filter: Filter { method, pod: None }, times: usize::MAX }
    }

    /// Lifts a rule: what it holds goes on.
    pub fn lift(&self, rule: RuleId) {
        self.shared.state().rules.retain(|r| r.id != rule.0);
        self.shared.rules_changed.send_modify(|n| *n += 1);
    }

    /// Lifts every rule and hook.
    pub fn lift_all(&self) {
        let mut state = self.shared.state();
        state.rules.clear();
        state.hook = None;
        state.events = EventFault::None;
        drop(state);
        self.shared.rules_changed.send_modify(|n| *n += 1);
    }

    /// What happens to runtime events from now on.
    pub fn events(&self, fault: EventFault) {
        self.shared.state().events = fault;
    }

    /// Runs `hook` once, right before or after the runtime executes mutating call number `n` (from
    /// 0, counted since the start or [`Self::forget_calls`]). Before: the call never reaches the
    /// runtime. After: its answer never reaches the caller.
    pub fn at_mutating_call(&self, n: usize, moment: Moment, hook: impl FnOnce() + Send + 'static) {
        self.shared.state().hook = Some(Hook { mutating_call: n, moment, run: Box::new(hook) });
    }

    /// Runs `witness` with every mutating call, before the runtime sees it and before any rule or
    /// hook applies.
    pub fn witness_mutating_calls(&self, witness: impl Fn(&Call) + Send + Sync + 'static) {
        self.shared.state().witness = Some(Arc::new(witness));
    }

    /// Whether a hook is still waiting for its call.
    pub fn hook_pending(&self) -> bool {
        self.shared.state().hook.is_some()
    }
}

impl RuleFor<'_> {
    /// Only calls for the pod whose name begins with `name`, or whose uid is `name`.
    pub fn pod(mut self, name: &str) -> Self {
        self.filter.pod = Some(name.to_owned());
        self
    }

    /// Only the next `times` matching calls.
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// [`Fault::Delay`]
    pub fn delay(self, by: Duration) -> RuleId {
        self.fault(Fault::Delay(by))
    }

    /// [`Fault::Hang`]
    pub fn hang(self) -> RuleId {
        self.fault(Fault::Hang)
    }

    /// [`Fault::HangAnswer`]
    pub fn hang_answer(self) -> RuleId {
        self.fault(Fault::HangAnswer)
    }

    /// [`Fault::Fail`]
    pub fn fail(self, code: Code, message: &'static str) -> RuleId {
        self.fault(Fault::Fail(code, message))
    }

    /// [`Fault::LoseAnswer`]
    pub fn lose_answer(self) -> RuleId {
        self.fault(Fault::LoseAnswer)
    }

    fn fault(self, fault: Fault) -> RuleId {
        let mut state = self.proxy.shared.state();
        let id = state.next_rule;
        state.next_rule += 1;
        state.rules.push(Rule { id, filter: self.filter, fault, left: self.times });
        RuleId(id)
    }
}
