//! The largest users outside of pods, which are reported when ending a pod would not help.

use crate::{
    blocking::LOOKS,
    model::{PodKey, Pressure, Signal, Space},
    pressure::core::{Acting, SEARCH_PERIOD, Spare, measured as amount},
    signals::{self, outsiders},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};

/// The number of users that a message names.
const NAMED: usize = 3;
/// How long the search for large directories may take.
const DIRECTORIES_PATIENCE: Duration = Duration::from_secs(5);
/// How long any search may take. A fork bomb may leave no thread for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Searches that are under way, and the last result for each signal.
pub(super) struct OutsideSearch {
    proc: PathBuf,
    root_dir: PathBuf,
    pod_logs_dir: PathBuf,
    searches: JoinSet<Found>,
    /// The last messages, and when they were found.
    messages: BTreeMap<Signal, (String, Instant)>,
    /// The signals that are short.
    short: BTreeSet<Signal>,
}

/// The result of a search.
#[derive(Debug, PartialEq)]
struct Found {
    signal: Signal,
    message: String,
}

/// Why no pod is evicted, as the end of a sentence. `exempt`: the pods whose eviction would help,
/// and why they are never evicted.
pub(super) fn about_pods(all_measured: bool, exempt: &[(PodKey, Spare)]) -> String {
    if !exempt.is_empty() {
        let named = exempt.iter().take(NAMED).map(|(key, why)| format!("{key} ({})", why.as_str()));
        let mut named: Vec<String> = named.collect();
        let more = exempt.len() - named.len();
        if more > 0 {
            named.push(format!("and {more} more"));
        }
        return format!(
            "the pods whose eviction would help are never evicted: {}",
            named.join(", ")
        );
    }
    let pods = if all_measured { "a pod" } else { "one of the measured pods" };
    format!("evicting {pods} would not help")
}

fn message(acting: &Acting, about_pods: &str) -> String {
    let (signal, threshold) = (acting.threshold.signal, acting.threshold.value);
    format!("{signal} is below its threshold of {threshold}, and {about_pods}")
}

impl OutsideSearch {
    pub(super) fn new(proc: &Path, root_dir: PathBuf, pod_logs_dir: PathBuf) -> Self {
        Self {
            proc: proc.to_owned(),
            root_dir,
            pod_logs_dir,
            searches: JoinSet::new(),
            messages: BTreeMap::new(),
            short: BTreeSet::new(),
        }
    }

    /// Begins a search for the users of what is short. `about_pods` is what the message says about
    /// pods, from [`about_pods`]. Processes below `kubepods` are left out; `images` is a path on the
    /// file system of images.
    pub(super) fn begin(
        &mut self,
        acting: &Acting,
        about_pods: &str,
        kubepods: Vec<String>,
        images: Option<PathBuf>,
    ) {
        let signal = acting.threshold.signal;
        match signal.condition() {
            // Only pods take of it.
            Pressure::Memory if signal == Signal::AllocatableMemoryAvailable => {
                let message = message(acting, about_pods);
                self.searches.spawn(async move { Found { signal, message } });
            }
            Pressure::Memory => {
                let users = self.largest_processes(kubepods, |process| process.resident);
                self.spawn(acting, about_pods, PATIENCE, users);
            }
            Pressure::Pid => {
                let users = self.largest_processes(kubepods, |process| process.threads);
                self.spawn(acting, about_pods, PATIENCE, users);
            }
            Pressure::Disk => {
                let users = self.largest_directories(signal, images);
                self.spawn(acting, about_pods, PATIENCE, users);
            }
        }
    }

    /// Waits for `users` at most `patience`, and makes the message.
    fn spawn(
        &mut self,
        acting: &Acting,
        about_pods: &str,
        patience: Duration,
        users: impl Future<Output = Vec<String>> + Send + 'static,
    ) {
        let (signal, message) = (acting.threshold.signal, message(acting, about_pods));
        self.searches.spawn(async move {
            let users = tokio::time::timeout(patience, users).await.unwrap_or_default();
            let users = match users.is_empty() {
                true => "none found".to_owned(),
                false => users.join(", "),
            };
            let message = format!("{message}. Largest users outside pods: {users}");
            Found { signal, message }
        });
    }

    /// Waits for the message of a search; for ever while there is none. Cancel-safe.
    pub(super) async fn next(&mut self) -> String {
        loop {
            match self.searches.join_next().await {
                Some(Ok(found)) => {
                    let message = (found.message.clone(), Instant::now());
                    self.messages.insert(found.signal, message);
                    return found.message;
                }
                Some(Err(err)) => tracing::debug!(%err, "the search for users has crashed"),
                None => std::future::pending().await,
            }
        }
    }

    /// Takes in which signals are short. The message about one that is not is dropped when the next
    /// shortage would have a search of its own: it may have another cause.
    pub(super) fn retain(&mut self, short: &BTreeSet<Signal>, now: Instant) {
        self.messages.retain(|signal, (_, found)| {
            short.contains(signal) || now.duration_since(*found) < SEARCH_PERIOD
        });
        self.short.clone_from(short);
    }

    /// The last messages about signals that are short.
    pub(super) fn messages(&self) -> impl Iterator<Item = String> {
        let of_short = self.messages.iter().filter(|(signal, _)| self.short.contains(signal));
        of_short.map(|(_, (message, _))| message.clone())
    }

    fn largest_processes(
        &self,
        kubepods: Vec<String>,
        size: fn(&signals::Process) -> u64,
    ) -> impl Future<Output = Vec<String>> + Send + use<> {
        let proc = self.proc.clone();
        async move {
            let search = move || outsiders::processes(&proc, &kubepods, NAMED, size);
            let found = LOOKS.run(search).await.unwrap_or_default();
            let shown = |one: outsiders::Outsider| {
                format!("{} (pid {}, {})", one.process.name, one.pid, size(&one.process))
            };
            found.into_iter().map(shown).collect()
        }
    }

    /// What lies in these directories is the pods' own.
    fn directories_of_pods(&self) -> [PathBuf; 2] {
        [self.root_dir.clone(), self.pod_logs_dir.clone()]
    }

    fn largest_directories(
        &self,
        signal: Signal,
        images: Option<PathBuf>,
    ) -> impl Future<Output = Vec<String>> + Send + use<> {
        let (root, known) = (self.root_dir.clone(), self.directories_of_pods());
        let of_root = matches!(signal, Signal::NodefsAvailable | Signal::NodefsInodesFree);
        let same = images.filter(|_| !of_root).unwrap_or(root);
        let size: fn(&Space) -> u64 = match signal.resource() {
            "inodes" => |space| space.inodes,
            _ => |space| space.bytes,
        };
        async move {
            let found = outsiders::directories(&same, &known, NAMED, DIRECTORIES_PATIENCE, size);
            let shown = |one: outsiders::LargeDirectory| {
                format!("{} ({})", one.path.display(), amount(signal, size(&one.space)))
            };
            found.await.into_iter().map(shown).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::Reading,
        pressure::core::{Amount, Threshold},
    };

    fn acting(signal: Signal) -> Acting {
        let value = Amount::Number(100);
        Acting {
            threshold: Threshold { signal, grace: None, value, min_reclaim: None },
            reading: Reading { available: 60, capacity: 1000, at: Duration::from_secs(1) },
            shortfall: 40,
        }
    }

    fn search() -> OutsideSearch {
        OutsideSearch::new(Path::new("/proc"), "/root-dir".into(), "/logs-dir".into())
    }

    #[test]
    fn volumes_and_logs_of_pods_are_not_outside_of_pods() {
        let known = search().directories_of_pods();
        assert_eq!(known, ["/root-dir", "/logs-dir"].map(PathBuf::from));
    }

    #[tokio::test]
    async fn a_search_that_hangs_ends_and_delays_no_other() {
        let mut search = search();
        let (memory, disk) = (Signal::MemoryAvailable, Signal::NodefsAvailable);
        let soon = Duration::from_millis(100);
        let about_pods = || about_pods(true, &[]);
        search.spawn(&acting(disk), &about_pods(), soon, std::future::pending());
        search.spawn(&acting(memory), &about_pods(), PATIENCE, async {
            vec!["yes (pid 7, 900)".to_owned()]
        });
        let found = search.next().await;
        assert!(found.ends_with("outside pods: yes (pid 7, 900)"), "{found}");
        let late = search.next().await;
        assert!(late.ends_with("outside pods: none found"), "{late}");
        let (both, now) = (BTreeSet::from([memory, disk]), Instant::now());
        search.retain(&both, now);
        assert_eq!(search.messages().collect::<Vec<_>>(), [found.clone(), late.clone()]);
        search.begin(&acting(Signal::AllocatableMemoryAvailable), &about_pods(), Vec::new(), None);
        assert!(search.next().await.ends_with("evicting a pod would not help"), "nothing outside");
        search.retain(&BTreeSet::from([memory]), now);
        assert_eq!(search.messages().collect::<Vec<_>>(), std::slice::from_ref(&found));
        search.retain(&both, now);
        assert_eq!(search.messages().collect::<Vec<_>>(), [found.clone(), late], "no new search");
        search.retain(&BTreeSet::from([memory]), now + SEARCH_PERIOD);
        search.retain(&both, now);
        assert_eq!(search.messages().collect::<Vec<_>>(), [found], "the disk was not short");
    }

    #[test]
    fn a_message_names_pods_whose_eviction_would_help() {
        let pod = |name: &str| (PodKey::new("default", name), Spare::Static);
        let pods = [pod("a"), pod("b"), pod("c"), pod("d")];
        assert_eq!(about_pods(true, &[]), "evicting a pod would not help");
        assert_eq!(about_pods(false, &[]), "evicting one of the measured pods would not help");
        let named = "the pods whose eviction would help are never evicted: default/a (it is static, \
                     and staticPodEviction is never)";
        assert_eq!(about_pods(false, &pods[..1]), named);
        let all = about_pods(true, &pods);
        assert!(all.starts_with(&format!("{named}, default/b (")), "{all}");
        assert!(all.ends_with(", and 1 more"), "{all}");
    }
}
