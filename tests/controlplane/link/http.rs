//! Requests to the API server, recorded, and answered otherwise than it would.
//!
//! TLS ends here and begins anew. Each connection has one of its own behind it, with the same
//! protocol (HTTP/1.1 or 2) and the same client certificate: every identity of the tests is made in
//! this process, with its key. What it is worth is the API server's to say. Both end together.

mod forward;
mod rewritten;

use super::super::{
    ControlPlane,
    pki::{self, AnyClient, Authority},
};
use crate::support::{block_on, tokio_runtime};
use serde_json::Value;
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{net::TcpListener, sync::watch, task::AbortHandle, task::JoinSet, time::Instant};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

/// Before or after the API server has executed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The request never reaches it.
    Before,
    /// It has executed the request; its answer never arrives.
    After,
}

/// What happens to a matching request.
#[derive(Clone)]
enum Fault {
    /// Not executed; answered with this status and seconds of `Retry-After`.
    Answer(u16, Option<u32>),
    /// A watch whose resource version is too old: answered, and over with an event that says so.
    Expire,
    /// Passed on after this long.
    Delay(Duration),
    /// Not passed on until the rule is lifted.
    Hang,
    /// Executed; the answer is kept back until the rule is lifted.
    HangAnswer,
    /// Something is run, and no answer ever given.
    Run(Moment, Arc<dyn Fn() + Send + Sync>),
    /// Executed; each object of the answer is changed.
    Rewrite(Rewrite),
}

/// Changes an object that the API server sends.
type Rewrite = Arc<dyn Fn(&mut Value) + Send + Sync>;

struct Rule {
    id: u64,
    verb: Option<&'static str>,
    path: String,
    fault: Fault,
    /// How many matching requests it still lets pass.
    skip: usize,
    /// How often it still applies.
    left: usize,
}

/// A request, and what became of it.
#[derive(Clone, Debug)]
pub struct Recorded {
    number: usize,
    /// The method; `WATCH` for a GET that watches.
    pub verb: String,
    /// Without the query.
    pub path: String,
    /// What comes after `?`.
    pub query: String,
    /// `Content-Type`
    pub content_type: String,
    /// `User-Agent`
    pub user_agent: String,
    /// The body.
    pub body: Vec<u8>,
    /// When it came.
    pub at: Instant,
    /// Whether it was passed on.
    pub reached: bool,
    /// The answer's status.
    pub status: Option<u16>,
    /// Bytes of the answer's body so far; a watch goes on.
    pub answered_bytes: u64,
}

#[derive(Default)]
struct State {
    requests: Vec<Recorded>,
    next_request: usize,
    rules: Vec<Rule>,
    next_rule: u64,
}

struct Shared {
    server: SocketAddr,
    authority: Arc<Authority>,
    acceptor: TlsAcceptor,
    state: Mutex<State>,
    /// Counts changes of the rules, so that held requests look whether theirs was lifted.
    rules_changed: watch::Sender<u64>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// The proxy; dropping it cuts everything.
pub struct Http {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

/// A rule in the making: `http.on("PATCH", "/api/v1/nodes/").times(1).answer(500)`.
#[must_use]
pub struct RuleFor<'a> {
    http: &'a Http,
    verb: Option<&'static str>,
    path: String,
    skip: usize,
    times: usize,
}

/// Names a rule, to lift it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(u64);

impl Http {
    /// Listens on loopback for requests to the API server.
    pub fn start(cluster: &ControlPlane) -> Self {
        let identity = cluster.server_identity();
        let mut tls = ServerConfig::builder_with_provider(pki::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(Arc::new(AnyClient))
            .with_single_cert(identity.chain(), identity.key())
            .unwrap();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let shared = Arc::new(Shared {
            server: cluster.address(),
            authority: cluster.authority(),
            acceptor: TlsAcceptor::from(Arc::new(tls)),
            state: Mutex::default(),
            rules_changed: watch::channel(0).0,
        });
        let listener = block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let of_task = Arc::clone(&shared);
        let task = tokio_runtime().spawn(async move {
            // Dropped together with this task, and every connection with it.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(forward::connection(stream, Arc::clone(&of_task)));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { address, shared, task: task.abort_handle() }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything recorded so far, in the order of arrival.
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.state().requests.clone()
    }

    /// How many requests came with this verb (`"*"` for all) to a path that begins like this.
    pub fn count(&self, verb: &'static str, path: &str) -> usize {
        let state = self.shared.state();
        state.requests.iter().filter(|request| request.is(verb_filter(verb), path)).count()
    }

    /// Forgets what was recorded.
    pub fn forget(&self) {
        self.shared.state().requests.clear();
    }

    /// Begins a rule for requests with this verb (an HTTP method, `"WATCH"` for a GET that watches,
    /// `"WRITE"` for all that change something, `"*"` for all) to a path that begins like this. Of
    /// several rules the first one applies.
    pub fn on(&self, verb: &'static str, path: &str) -> RuleFor<'_> {
        let (verb, path) = (verb_filter(verb), path.to_owned());
        RuleFor { http: self, verb, path, skip: 0, times: usize::MAX }
    }

    /// Lifts a rule: what it holds goes on.
    pub fn lift(&self, rule: RuleId) {
        self.change_rules(|rules| rules.retain(|r| r.id != rule.0));
    }

    /// Lifts every rule.
    pub fn lift_all(&self) {
        self.change_rules(Vec::clear);
    }

    fn change_rules(&self, change: impl FnOnce(&mut Vec<Rule>)) {
        change(&mut self.shared.state().rules);
        self.shared.rules_changed.send_modify(|n| *n += 1);
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Recorded {
    fn is(&self, verb: Option<&str>, path: &str) -> bool {
        let is_verb = |verb| self.verb == verb || verb == "WRITE" && self.is_write();
        verb.is_none_or(is_verb) && self.path.starts_with(path)
    }

    /// Whether it is to change something.
    pub fn is_write(&self) -> bool {
        ["POST", "PUT", "PATCH", "DELETE"].contains(&self.verb.as_str())
    }
}

impl RuleFor<'_> {
    /// The next `skip` matching requests pass.
    pub fn after(mut self, skip: usize) -> Self {
        self.skip = skip;
        self
    }

    /// Only the next `times` matching requests.
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// Not executed; answered with an error of this status.
    pub fn answer(self, status: u16) -> RuleId {
        self.fault(Fault::Answer(status, None))
    }

    /// As [`Self::answer`], with `Retry-After` in seconds.
    pub fn answer_retry_after(self, status: u16, seconds: u32) -> RuleId {
        self.fault(Fault::Answer(status, Some(seconds)))
    }

    /// For watches: answered with 200, and over at once with an event of type ERROR that says 410,
    /// as the API server ends a watch whose resource version etcd has compacted.
    pub fn expire(self) -> RuleId {
        self.fault(Fault::Expire)
    }

    /// Passed on after this long.
    pub fn delay(self, by: Duration) -> RuleId {
        self.fault(Fault::Delay(by))
    }

    /// Not passed on until the rule is lifted.
    pub fn hang(self) -> RuleId {
        self.fault(Fault::Hang)
    }

    /// Executed; the answer is kept back until the rule is lifted.
    pub fn hang_answer(self) -> RuleId {
        self.fault(Fault::HangAnswer)
    }

    /// Runs `hook` (kill the agent) at the next matching request, which never gets an answer.
    pub fn run(self, moment: Moment, hook: impl FnOnce() + Send + 'static) -> RuleId {
        let hook = Mutex::new(Some(hook));
        let once = move || {
            if let Some(hook) = hook.lock().unwrap().take() {
                hook();
            }
        };
        self.times(1).fault(Fault::Run(moment, Arc::new(once)))
    }

    /// Executed; `change` is applied to each object of the answer: a single one, those of a list,
    /// and those of the events of a watch. Only for paths whose answers are JSON.
    pub fn rewrite(self, change: impl Fn(&mut Value) + Send + Sync + 'static) -> RuleId {
        self.fault(Fault::Rewrite(Arc::new(change)))
    }

    fn fault(self, fault: Fault) -> RuleId {
        let mut state = self.http.shared.state();
        let id = state.next_rule;
        state.next_rule += 1;
        let Self { verb, path, skip, times, .. } = self;
        state.rules.push(Rule { id, verb, path, fault, skip, left: times });
        RuleId(id)
    }
}

fn verb_filter(verb: &'static str) -> Option<&'static str> {
    (verb != "*").then_some(verb)
}
