//! The watches of objects that pods refer to, and those of Services and RuntimeClasses.
//!
//! ```text
//!  first pod refers to it ─► Open ─┬─► read, immutable ─► Read
//!                                  └─► last pod is gone ─► closed
//! ```

use super::{
    super::{Link, Reflector, WatchCache, Watched},
    AUTHORIZER_LAG, is_object_name,
    seen::{SeenObject, SeenRuntimeClass, SeenService},
};
use crate::{
    model::{
        ClusterServices, CollectOrdered as _, DataObject, ObjectAnswer, ObjectKey, ObjectKind,
        RuntimeClasses, k8s,
    },
    podspec::{ObjectRef, is_linked, object_refs},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    task::{JoinError, JoinSet},
};
use tokio_util::sync::{CancellationToken, DropGuard};

const RUNTIME_CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";
const SERVICES: &str = "/api/v1/services";
/// Excludes headless Services, as the kubelet does.
const WITH_ADDRESS: &str = "spec.clusterIP!=None";

/// The most ConfigMaps and Secrets of one pod that are watched. Each watch takes a stream of a
/// connection that all pods share.
const MAX_OBJECTS_OF_POD: usize = 500;

type Cache<T> = watch::Receiver<Arc<WatchCache<T>>>;

/// All watches.
pub(super) struct Watches {
    link: watch::Receiver<Link>,
    objects: BTreeMap<ObjectKey, ObjectWatch>,
    /// Objects without a watch, because their pods refer to more than [`MAX_OBJECTS_OF_POD`].
    excess: BTreeSet<ObjectKey>,
    services: Option<(Cache<SeenService>, DropGuard)>,
    runtime_classes: Option<(Cache<SeenRuntimeClass>, DropGuard)>,
    tasks: JoinSet<()>,
    /// Notified when a watch has published something.
    changed: Arc<Notify>,
}

/// The state of one object's watch.
enum ObjectWatch {
    /// There is no watch, because no object can have this name.
    Impossible,
    Open(OpenWatch),
    /// The watch is closed, because the object is immutable.
    Read(Arc<DataObject>),
}

struct OpenWatch {
    /// For [`Reflector::one_of_many`].
    number: usize,
    cache: Cache<SeenObject>,
    /// Boot time of the first refusal without a success or an absence since.
    refused_since: Option<Duration>,
    /// Ends the watch when it is dropped.
    _stop: DropGuard,
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watches").field("objects", &self.objects.len()).finish_non_exhaustive()
    }
}

impl Watches {
    pub(super) fn new(link: watch::Receiver<Link>) -> Self {
        Self {
            link,
            objects: BTreeMap::new(),
            excess: BTreeSet::new(),
            services: None,
            runtime_classes: None,
            tasks: JoinSet::new(),
            changed: Arc::default(),
        }
    }

    /// Follows the objects that these pods refer to and no others.
    pub(super) fn follow<'a>(&mut self, pods: impl Iterator<Item = &'a k8s::Pod>) {
        let mut wanted = BTreeSet::new();
        self.excess.clear();
        for pod in pods {
            let mut of_pod = BTreeSet::new();
            for ObjectRef { key, .. } in object_refs(pod) {
                if of_pod.len() < MAX_OBJECTS_OF_POD || of_pod.contains(&key) {
                    of_pod.insert(key);
                } else {
                    self.excess.insert(key);
                }
            }
            wanted.extend(of_pod);
        }
        // Another pod may refer to it.
        self.excess.retain(|key| !wanted.contains(key));
        self.objects.retain(|key, _| wanted.contains(key));
        let taken = self.numbers();
        let mut free = (0..).filter(|number| !taken.contains(number));
        for key in wanted {
            if !self.objects.contains_key(&key) {
                let watch = self.open(&key, &mut free);
                self.objects.insert(key, watch);
            }
        }
    }

    /// `free` are the numbers that no open watch has, in order.
    fn open(&mut self, key: &ObjectKey, free: &mut impl Iterator<Item = usize>) -> ObjectWatch {
        if !is_object_name(&key.namespace) || !is_object_name(&key.name) {
            return ObjectWatch::Impossible;
        }
        let kind = match key.kind {
            ObjectKind::ConfigMap => "configmaps",
            ObjectKind::Secret => "secrets",
        };
        let collection = format!("/api/v1/namespaces/{}/{kind}", key.namespace);
        let own = format!("metadata.name={}", key.name);
        let number = free.next().unwrap_or_default();
        let (reflector, cache) = Reflector::new(&collection, own, self.link.clone());
        let stop = self.spawn(reflector.one_of_many(number), cache.clone());
        ObjectWatch::Open(OpenWatch { number, cache, refused_since: None, _stop: stop })
    }

    /// The numbers of the open watches.
    fn numbers(&self) -> BTreeSet<usize> {
        let number = |watch: &ObjectWatch| match watch {
            ObjectWatch::Open(open) => Some(open.number),
            ObjectWatch::Impossible | ObjectWatch::Read(_) => None,
        };
        self.objects.values().filter_map(number).collect_ordered()
    }

    /// Opens or closes the watch of Services.
    pub(super) fn follow_services(&mut self, wanted: bool) {
        if !wanted {
            self.services = None;
        } else if self.services.is_none() {
            let (reflector, cache) =
                Reflector::new(SERVICES, WITH_ADDRESS.to_owned(), self.link.clone());
            let stop = self.spawn(reflector, cache.clone());
            self.services = Some((cache, stop));
        }
    }

    /// Opens or closes the watch of RuntimeClasses.
    pub(super) fn follow_runtime_classes(&mut self, wanted: bool) {
        if !wanted {
            self.runtime_classes = None;
        } else if self.runtime_classes.is_none() {
            let (reflector, cache) =
                Reflector::new(RUNTIME_CLASSES, String::new(), self.link.clone());
            let stop = self.spawn(reflector, cache.clone());
            self.runtime_classes = Some((cache, stop));
        }
    }

    fn spawn<T: Watched>(&mut self, reflector: Reflector<T>, mut cache: Cache<T>) -> DropGuard {
        let stop = CancellationToken::new();
        let (token, changed) = (stop.clone(), Arc::clone(&self.changed));
        self.tasks.spawn(async move {
            let note_changes = async {
                while cache.changed().await.is_ok() {
                    changed.notify_one();
                }
            };
            tokio::join!(reflector.run(token), note_changes);
        });
        stop.drop_guard()
    }

    /// Notified when a watch has published something.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Waits until the task of a watch has panicked, and lets go of those that have ended. `None`
    /// when there are no tasks.
    ///
    /// # Cancel safety
    /// A task that has ended stays in the set until it is taken out.
    pub(super) async fn panicked(&mut self) -> Option<JoinError> {
        loop {
            if let Err(error) = self.tasks.join_next().await? {
                return Some(error);
            }
        }
    }

    /// The answers that are known, and the boot time at which the next refusal becomes one. Closes
    /// the watches of immutable objects that were read.
    pub(super) fn answers(
        &mut self,
        now: Duration,
    ) -> (BTreeMap<ObjectKey, ObjectAnswer>, Option<Duration>) {
        let too_many = || {
            let why = format!("the pod refers to more than {MAX_OBJECTS_OF_POD} objects");
            ObjectAnswer::Refused(why.into())
        };
        let excess = self.excess.iter().map(|key| (key.clone(), too_many()));
        let mut answers: BTreeMap<_, _> = excess.collect_ordered();
        let mut wake_at = None;
        for (key, watch) in &mut self.objects {
            let answer = match watch {
                ObjectWatch::Impossible => Some(ObjectAnswer::Missing),
                ObjectWatch::Read(object) => Some(ObjectAnswer::Found(Arc::clone(object))),
                ObjectWatch::Open(open) => {
                    let answer = open.answer(key, now);
                    let shown_at = open.refused_since.map(|since| since + AUTHORIZER_LAG);
                    wake_at = wake_at.into_iter().chain(shown_at.filter(|at| *at > now)).min();
                    answer
                }
            };
            if let Some(ObjectAnswer::Found(object)) = &answer
                && object.immutable
            {
                *watch = ObjectWatch::Read(Arc::clone(object));
            }
            answers.extend(answer.map(|answer| (key.clone(), answer)));
        }
        (answers, wake_at)
    }

    /// The Services to which pods of these namespaces are linked; `None` until they were read.
    pub(super) fn services(&self, namespaces: &BTreeSet<Arc<str>>) -> Option<Arc<ClusterServices>> {
        let (cache, _) = self.services.as_ref()?;
        let cache = Arc::clone(&cache.borrow());
        let is_wanted = |seen: &SeenService| {
            seen.has_address() && namespaces.iter().any(|of| is_linked(&seen.0, of))
        };
        let wanted = cache.objects.values().filter(|seen| is_wanted(seen));
        cache.whole.then(|| Arc::new(wanted.map(|seen| Arc::clone(&seen.0)).collect()))
    }

    /// Why the watch of Services or of RuntimeClasses does not go on, or which Service of these
    /// namespaces is left out, for people.
    pub(super) fn trouble(&self, namespaces: &BTreeSet<Arc<str>>) -> Option<String> {
        let cache = self.services.as_ref().map(|(cache, _)| Arc::clone(&cache.borrow()));
        let services = cache.as_ref().and_then(|cache| cache.trouble.clone());
        let left_out = cache.and_then(|cache| {
            let is_near =
                |key: &str| key.split_once('/').is_some_and(|(of, _)| namespaces.contains(of));
            let (key, left_out) = cache.left_out.iter().find(|(key, _)| is_near(key))?;
            Some(format!("the Service {key} is left out: {}", left_out.why))
        });
        let classes = self.runtime_classes.as_ref();
        let classes = classes.and_then(|(cache, _)| cache.borrow().trouble.clone());
        let told = |what: &str, why: String| format!("{what} can't be watched: {why}");
        services
            .map(|why| told("Services", why))
            .or_else(|| classes.map(|why| told("RuntimeClasses", why)))
            .or(left_out)
    }

    /// The handlers of all RuntimeClasses; `None` until they were read.
    pub(super) fn runtime_classes(&self) -> Option<Arc<RuntimeClasses>> {
        let (cache, _) = self.runtime_classes.as_ref()?;
        let cache = Arc::clone(&cache.borrow());
        let all = cache.objects.values().map(|seen| (seen.name.clone(), seen.handler.clone()));
        cache.whole.then(|| Arc::new(all.collect_ordered()))
    }
}

impl OpenWatch {
    fn answer(&mut self, key: &ObjectKey, now: Duration) -> Option<ObjectAnswer> {
        let cache = Arc::clone(&self.cache.borrow_and_update());
        if cache.whole {
            self.refused_since = None;
            let found = cache.objects.values().find(|seen| seen.0.key == *key);
            return Some(match found {
                Some(seen) => ObjectAnswer::Found(Arc::clone(&seen.0)),
                None => ObjectAnswer::Missing,
            });
        }
        let Some(words) = cache.refusal.as_deref() else {
            self.refused_since = None;
            return None;
        };
        let since = *self.refused_since.get_or_insert(now);
        (now >= since + AUTHORIZER_LAG).then(|| ObjectAnswer::Refused(words.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusing(why: &str) -> WatchCache<SeenObject> {
        WatchCache { refusal: Some(why.to_owned()), ..WatchCache::default() }
    }

    #[test]
    fn a_refusal_is_told_after_the_lag_of_the_authorizer() {
        let (server, cache) = watch::channel(Arc::new(refusing("no relationship")));
        let stop = CancellationToken::new().drop_guard();
        let mut open = OpenWatch { number: 0, cache, refused_since: None, _stop: stop };
        let key = ObjectKey::new(ObjectKind::Secret, "ns", "a");
        let begin = Duration::from_secs(100);
        let mut after = |seconds: u64| open.answer(&key, begin + Duration::from_secs(seconds));
        assert_eq!([after(0), after(4)], [None, None]);
        assert_eq!(after(5), Some(ObjectAnswer::Refused("no relationship".into())));

        server.send_replace(Arc::default());
        assert_eq!(after(6), None, "the API server is away");
        server.send_replace(Arc::new(refusing("no relationship")));
        assert_eq!(after(7), None, "it may have restarted");

        let empty = WatchCache { whole: true, ..WatchCache::default() };
        server.send_replace(Arc::new(empty));
        assert_eq!(after(8), Some(ObjectAnswer::Missing));
        server.send_replace(Arc::new(WatchCache { whole: true, ..refusing("no") }));
        assert_eq!(after(99), Some(ObjectAnswer::Missing), "what was seen last counts");
    }

    /// A pod that refers to Secrets with these numbers.
    fn pod(numbers: impl Iterator<Item = usize>) -> k8s::Pod {
        let secrets = numbers.map(|n| k8s::LocalObjectReference { name: format!("s{n}") });
        let image_pull_secrets = Some(secrets.collect());
        let spec = k8s::PodSpec { image_pull_secrets, ..k8s::PodSpec::default() };
        k8s::Pod { spec: Some(spec), ..k8s::Pod::default() }
    }

    #[tokio::test]
    async fn a_pod_with_too_many_objects_has_a_refusal_for_the_rest() {
        let mut watches = Watches::new(watch::channel(None).1);
        let refused = |watches: &mut Watches| {
            let answers = watches.answers(Duration::ZERO).0.into_iter();
            let named = answers.map(|(key, answer)| {
                let why = "the pod refers to more than 500 objects";
                assert_eq!(answer, ObjectAnswer::Refused(why.into()));
                key.name.to_string()
            });
            named.collect::<Vec<_>>()
        };
        let large = pod((0..502).chain([0, 1]));
        watches.follow([&large, &pod(600..603)].into_iter());
        assert_eq!(refused(&mut watches), ["s500", "s501"]);
        assert_eq!(watches.numbers(), (0..503).collect());
        // The closed watches leave their numbers to others.
        watches.follow([&large].into_iter());
        watches.follow([&large, &pod(500..502), &pod(700..701)].into_iter());
        assert_eq!(refused(&mut watches), Vec::<String>::new(), "another pod refers to them");
        assert_eq!(watches.numbers(), (0..503).collect());
    }
}
