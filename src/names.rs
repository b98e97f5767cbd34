//! Looking up the names of hosts, for clients of HTTP.
//!
//! The resolver of hyper begins a lookup for each connection, each on a thread of tokio, and cannot
//! stop one. While a name server is dead, a lookup takes many seconds, so those of all connections
//! together would take the threads that pods need. Here one lookup of a name serves all who ask for
//! it, and a pool bounds the threads. hyper asks for names only, never for IP addresses.

use crate::{
    blocking::{API_LOOKUPS, Pool},
    clock,
};
use hyper_util::client::legacy::connect::dns::Name;
use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
    vec,
};
use tokio::{sync::watch, time::timeout};

/// How long an answer is used. A client may have given up before its lookup ended: its next try,
/// which is at most two seconds later, uses the answer.
const KEPT: Duration = Duration::from_secs(5);

/// A lookup that takes longer is overdue. Until it ends, and when it fails, the addresses of the
/// last lookup that found some are used. The system repeats a lost query only after 5 s, and the
/// network may be back long before.
const OVERDUE: Duration = Duration::from_secs(1);

/// The least number of tries for each address family of a name. hyper divides its limit for TCP by
/// the number of addresses, so shorter lists are repeated: with up to three addresses each try takes
/// the same time.
pub(crate) const TRIES: u32 = 3;

/// The error of a lookup goes to all who wait for it.
type Addresses = Result<Vec<SocketAddr>, Arc<io::Error>>;
/// What a lookup has found, and when it ended (boot time); `None` until then.
type LookupEnd = Option<(Addresses, Duration)>;
type Lookup = watch::Receiver<LookupEnd>;

/// Looks up names. Copies share their lookups.
#[derive(Clone, Debug)]
pub struct HostNames {
    pool: &'static Pool,
    resolve: fn(&str) -> io::Result<Vec<SocketAddr>>,
    known: Arc<Mutex<HostLookups>>,
}

#[derive(Debug, Default)]
struct HostLookups {
    /// By name, each with the time when it began (boot time).
    lookups: BTreeMap<String, (Duration, Lookup)>,
    /// The name that was found last, and its addresses.
    last: Option<(String, Vec<SocketAddr>)>,
}

impl HostNames {
    /// For connections to the API server.
    #[must_use]
    pub fn of_api_server() -> Self {
        Self::new(&API_LOOKUPS)
    }

    /// Lookups by the system, on the threads of `pool`.
    pub(crate) fn new(pool: &'static Pool) -> Self {
        let resolve = |name: &str| Ok((name, 0).to_socket_addrs()?.collect());
        Self { pool, resolve, known: Arc::default() }
    }

    /// The addresses of a host, without ports.
    ///
    /// # Cancel safety
    /// A lookup that has begun keeps its thread until it ends.
    async fn find(&self, name: &str) -> Addresses {
        loop {
            let (begun, lookup, patience) = self.join(name);
            let mut ending = pin!(self.end(name, begun, lookup));
            let ended = match timeout(patience, &mut ending).await {
                Ok(ended) => ended?,
                Err(_) => match self.last(name) {
                    Some(addresses) => return Ok(addresses),
                    None => ending.await?,
                },
            };
            if let Some((found, _)) = ended {
                return found.or_else(|error| self.last(name).ok_or(error));
            }
        }
    }

    /// Carries out a lookup that has `begun` here, or waits for another client's. `None`: that
    /// client gave up before it had a thread.
    async fn end(
        &self,
        name: &str,
        begun: Option<watch::Sender<LookupEnd>>,
        mut lookup: Lookup,
    ) -> Result<LookupEnd, Arc<io::Error>> {
        if let Some(ended) = begun {
            let (resolve, known, name) = (self.resolve, Arc::clone(&self.known), name.to_owned());
            let work = move || {
                let found = resolve(&name).map_err(Arc::new);
                if let Ok(addresses) = &found {
                    lock(&known).last = Some((name, addresses.clone()));
                }
                ended.send_replace(Some((found, clock::now().boot)));
            };
            let run = self.pool.run(work).await;
            run.map_err(|crashed| Arc::new(io::Error::other(crashed)))?;
        }
        Ok(lookup.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone()))
    }

    /// The lookup of a name that is under way or has just ended, or a new one with what it reports
    /// its end to; and the time until it is overdue.
    fn join(&self, name: &str) -> (Option<watch::Sender<LookupEnd>>, Lookup, Duration) {
        let mut known = lock(&self.known);
        let now = clock::now().boot;
        known.lookups.retain(|_, (_, lookup)| is_of_use(lookup, now));
        if let Some((begun, lookup)) = known.lookups.get(name) {
            return (None, lookup.clone(), (*begun + OVERDUE).saturating_sub(now));
        }
        let (sender, lookup) = watch::channel(None);
        known.lookups.insert(name.to_owned(), (now, lookup.clone()));
        (Some(sender), lookup, OVERDUE)
    }

    /// The addresses that the last lookup has found, where it was one of this name.
    fn last(&self, name: &str) -> Option<Vec<SocketAddr>> {
        let known = lock(&self.known);
        let (_, addresses) = known.last.as_ref().filter(|(found, _)| found == name)?;
        Some(addresses.clone())
    }
}

fn lock(known: &Mutex<HostLookups>) -> MutexGuard<'_, HostLookups> {
    // Each change is one call.
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True while a lookup is under way, and for a while after it has found something.
fn is_of_use(lookup: &Lookup, now: Duration) -> bool {
    match &*lookup.borrow() {
        None => lookup.has_changed().is_ok(),
        Some((found, ended)) => found.is_ok() && now.saturating_sub(*ended) < KEPT,
    }
}

impl tower::Service<Name> for HostNames {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = Arc<io::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let names = self.clone();
        Box::pin(async move { Ok(tries(names.find(name.as_str()).await?).into_iter()) })
    }
}

/// The addresses in the order of their tries, as [`TRIES`] says. hyper tries the family of the
/// first address, and 300 ms later the other family beside it.
fn tries(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, other): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let tries = |family: Vec<SocketAddr>| {
        let count = family.len().max(TRIES as usize);
        family.into_iter().cycle().take(count)
    };
    tries(first).chain(tries(other)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use hyper_util::client::legacy::connect::HttpConnector;
    use std::sync::{
        Condvar,
        atomic::{AtomicUsize, Ordering},
    };
    use tokio::{
        net::{TcpListener, TcpSocket, TcpStream},
        time::Instant,
    };

    const SOON: Duration = Duration::from_millis(50);

    /// What lookups wait for.
    struct Gate(Mutex<bool>, Condvar);

    impl Gate {
        const fn shut() -> Self {
            Self(Mutex::new(false), Condvar::new())
        }

        fn open(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_all();
        }

        fn pass(&self) {
            drop(self.1.wait_while(self.0.lock().unwrap(), |open| !*open).unwrap());
        }
    }

    fn names(pool: &'static Pool, resolve: fn(&str) -> io::Result<Vec<SocketAddr>>) -> HostNames {
        HostNames { pool, resolve, known: Arc::default() }
    }

    fn here() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[tokio::test]
    async fn one_lookup_serves_all_even_those_who_ask_after_it() {
        static POOL: Pool = Pool::of_test(2);
        static GATE: Gate = Gate::shut();
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let names = names(&POOL, |_| {
            LOOKUPS.fetch_add(1, Ordering::Relaxed);
            GATE.pass();
            Ok(vec![here()])
        });
        for _ in 0..3 {
            let asked = futures_util::future::join_all((0..20).map(|_| names.find("api")));
            assert!(timeout(SOON, asked).await.is_err(), "the lookup hangs");
        }
        GATE.open();
        for _ in 0..3 {
            assert_eq!(names.find("api").await.unwrap(), [here()]);
        }
        assert_eq!(LOOKUPS.load(Ordering::Relaxed), 1);
        assert_eq!(names.find("other").await.unwrap(), [here()]);
        assert_eq!(LOOKUPS.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn while_a_lookup_hangs_the_addresses_of_before_are_used() {
        static POOL: Pool = Pool::of_test(1);
        static GATE: Gate = Gate::shut();
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let names = names(&POOL, |_| {
            if LOOKUPS.fetch_add(1, Ordering::Relaxed) > 0 {
                GATE.pass();
            }
            Ok(vec![here()])
        });
        assert_eq!(names.find("api").await.unwrap(), [here()]);
        // As after a while.
        lock(&names.known).lookups.clear();
        assert_eq!(names.find("api").await.unwrap(), [here()]);
        let overdue = Instant::now();
        assert_eq!(names.find("api").await.unwrap(), [here()]);
        assert!(overdue.elapsed() < OVERDUE, "no client waits for it any more");
        assert_eq!(LOOKUPS.load(Ordering::Relaxed), 2);
        assert!(timeout(OVERDUE * 2, names.find("other")).await.is_err());
        GATE.open();
    }

    #[tokio::test]
    async fn an_error_is_shared_and_not_kept() {
        static POOL: Pool = Pool::of_test(2);
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        static GATES: [Gate; 2] = [Gate::shut(), Gate::shut()];
        let names = names(&POOL, |_| {
            GATES[LOOKUPS.fetch_add(1, Ordering::Relaxed)].pass();
            Err(io::Error::other("no name server"))
        });
        for (gate, lookups) in GATES.iter().zip(1..) {
            let ask = || names.find("api");
            let (one, other, ()) = tokio::join!(biased; ask(), ask(), async { gate.open() });
            assert_eq!(one.unwrap_err().to_string(), "no name server");
            assert_eq!(other.unwrap_err().to_string(), "no name server");
            assert_eq!(LOOKUPS.load(Ordering::Relaxed), lookups);
        }
    }

    #[tokio::test]
    async fn when_a_lookup_fails_the_addresses_of_before_are_used() {
        static POOL: Pool = Pool::of_test(1);
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let names = names(&POOL, |_| match LOOKUPS.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(vec![here()]),
            _ => Err(io::Error::other("no name server")),
        });
        assert_eq!(names.find("api").await.unwrap(), [here()]);
        // As after a while.
        lock(&names.known).lookups.clear();
        assert_eq!(names.find("api").await.unwrap(), [here()]);
        assert!(names.find("other").await.is_err());
        assert_eq!(LOOKUPS.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn a_lookup_that_had_no_thread_is_begun_by_the_next_client() {
        static POOL: Pool = Pool::of_test(1);
        static GATE: Gate = Gate::shut();
        let names = names(&POOL, |_| Ok(vec![here()]));
        assert!(timeout(SOON, POOL.run(|| GATE.pass())).await.is_err());
        let gives_up = async {
            assert!(timeout(SOON, names.find("api")).await.is_err());
            GATE.open();
        };
        // The first one begins the lookup, the other one waits for it.
        let ((), found) = tokio::join!(biased; gives_up, names.find("api"));
        assert_eq!(found.unwrap(), [here()]);
    }

    #[test]
    fn each_family_of_addresses_has_at_least_three_tries() {
        let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 0);
        let tries = |addresses: &[&str]| {
            let found = tries(addresses.iter().map(|text| address(text)).collect());
            found.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(tries(&["1.1.1.1"]), "1.1.1.1 1.1.1.1 1.1.1.1");
        assert_eq!(tries(&["1.1.1.1", "1.1.1.2"]), "1.1.1.1 1.1.1.2 1.1.1.1");
        let four = ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"];
        assert_eq!(tries(&four), four.join(" "));
        assert_eq!(tries(&["::2", "1.1.1.1"]), "::2 ::2 ::2 1.1.1.1 1.1.1.1 1.1.1.1");
        assert_eq!(tries(&[]), "");
    }

    #[tokio::test]
    async fn a_silent_address_is_followed_by_the_next() {
        const LONG: Duration = Duration::from_millis(500);
        static POOL: Pool = Pool::of_test(1);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // The kernel answers no SYN for a listener whose queue is full.
        let silent = TcpSocket::new_v4().unwrap();
        silent.bind(SocketAddr::from(([127, 0, 0, 2], port))).unwrap();
        let silent = silent.listen(1).unwrap();
        let mut queue = Vec::new();
        while let Ok(Ok(stream)) =
            timeout(LONG, TcpStream::connect(silent.local_addr().unwrap())).await
        {
            queue.push(stream);
        }
        let names = names(&POOL, |_| {
            Ok([[127, 0, 0, 2], [127, 0, 0, 1]].map(|ip| SocketAddr::from((ip, 0))).into())
        });
        let mut tcp = HttpConnector::new_with_resolver(names);
        tcp.set_connect_timeout(Some(LONG * TRIES));
        let uri = format!("http://api.example:{port}/").parse().unwrap();
        let stream = tower::Service::call(&mut tcp, uri).await.unwrap();
        assert_eq!(stream.inner().peer_addr().unwrap(), listener.local_addr().unwrap());
    }

    #[test]
    fn the_answer_of_a_lookup_is_of_use_for_a_while() {
        let now = Duration::from_secs(100);
        let ended = |found: Addresses, ago: u64| {
            let ended = now.saturating_sub(Duration::from_secs(ago));
            is_of_use(&watch::channel(Some((found, ended))).1, now)
        };
        assert!(ended(Ok(vec![here()]), 4));
        assert!(!ended(Ok(vec![here()]), 5));
        assert!(!ended(Err(Arc::new(io::Error::other("no"))), 0));
        let (sender, lookup) = watch::channel(None);
        assert!(is_of_use(&lookup, now));
        drop(sender);
        assert!(!is_of_use(&lookup, now), "nobody looks it up");
    }
}
