//! What a watch has shown, and what that weighs.

use crate::api::{
    ApiError,
    answer::{MaybeRead, ObjectHead, Unread},
};
use serde::de::DeserializeOwned;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// What an object takes besides its own memory, roughly, in bytes: its places in two maps.
const ENTRY_BYTES: usize = 256;

/// An object as far as it is of interest here. Whatever else the server sends of it is not kept.
pub trait Watched: DeserializeOwned + Clone + Send + Sync + 'static {
    /// The most that all the objects of a watch may weigh together, in bytes. A watch that shows
    /// more is refused: it is not what the agent asked for. Pods that have ended
    /// ([`ObjectHead::phase`]) may weigh three quarters of it together, so that they leave room for
    /// others.
    const MAX_WEIGHT: usize;
    /// Whether the other objects are followed on when one can't be read, or does not fit into
    /// [`Self::MAX_WEIGHT`] and has a [`Self::head`]. Otherwise the watch fails.
    const LEAVES_OUT: bool = false;

    /// `namespace/name`, or the name.
    fn key(&self) -> String;

    /// What stays known of it when it is left out, where [`Self::LEAVES_OUT`].
    fn head(&self) -> ObjectHead {
        ObjectHead::default()
    }

    /// What it takes in memory besides the structure itself, roughly, in bytes.
    fn weight(&self) -> usize;

    /// Shares what it has in common with the object as it was shown before.
    fn share(&mut self, _previous: &Self) {}
}

/// What a watch has shown.
#[derive(Clone, Debug)]
pub struct WatchCache<T> {
    /// By [`Watched::key`].
    pub objects: BTreeMap<String, Arc<T>>,
    /// The objects that are there and are left out ([`Watched::LEAVES_OUT`]), by their keys.
    pub left_out: BTreeMap<String, LeftOut>,
    /// Whether everything was seen at least once.
    pub whole: bool,
    /// Whether the watch goes on: what is here is what the server has.
    pub live: bool,
    /// Why it does not.
    pub trouble: Option<String>,
    /// The same, if the API server is there and refuses the watch or sends more than the agent
    /// keeps.
    pub refusal: Option<String>,
}

/// An object that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// What stays known of it.
    pub head: ObjectHead,
    /// For people.
    pub why: String,
}

impl<T> Default for WatchCache<T> {
    fn default() -> Self {
        let (objects, left_out) = (BTreeMap::new(), BTreeMap::new());
        Self { objects, left_out, whole: false, live: false, trouble: None, refusal: None }
    }
}

impl<T> WatchCache<T> {
    pub(super) fn put(&mut self, key: String, found: Found<T>) {
        match found {
            Found::Object(object) => {
                self.left_out.remove(&key);
                self.objects.insert(key, object);
            }
            Found::LeftOut(left_out) => {
                self.objects.remove(&key);
                self.left_out.insert(key, left_out);
            }
        }
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.objects.remove(key);
        self.left_out.remove(key);
    }
}

/// What is known of an object that is there.
pub(super) enum Found<T> {
    Object(Arc<T>),
    LeftOut(LeftOut),
}

/// What a watch, and those before it that it goes on from, have shown, and what that weighs.
pub(super) struct Seen<T> {
    /// What came before everything was shown; `None` from then on.
    coming: Option<WatchCache<T>>,
    weights: BTreeMap<String, Weight>,
    weight: usize,
    /// Of that, pods that have ended.
    weight_of_ended: usize,
    /// The smallest weight of a pod that is left out for lack of room, and that has not ended.
    smallest_left_out: Option<usize>,
    since: Instant,
}

/// What an object takes in memory, in bytes.
#[derive(Clone, Copy)]
struct Weight {
    bytes: usize,
    ended: bool,
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        let (coming, weights) = (Some(WatchCache::default()), BTreeMap::new());
        Self {
            coming,
            weights,
            weight: 0,
            weight_of_ended: 0,
            smallest_left_out: None,
            since: Instant::now(),
        }
    }
}

impl<T: Watched> Seen<T> {
    /// Takes an object; gives it back with its key when it is to be published at once. It shares
    /// with `before`, what was published last, what it has in common with it.
    pub(super) fn take(
        &mut self,
        read: MaybeRead<T>,
        before: &WatchCache<T>,
    ) -> Result<Option<(String, Found<T>)>, ApiError> {
        let (key, found) = match read {
            Ok(object) => self.weigh(object, before)?,
            Err(unread) => {
                let Unread { key, head, error } = *unread;
                (key.clone(), self.leave_out(&key, head, error)?)
            }
        };
        match &mut self.coming {
            Some(coming) => {
                coming.put(key, found);
                Ok(None)
            }
            None => Ok(Some((key, found))),
        }
    }

    fn weigh(
        &mut self,
        mut object: T,
        before: &WatchCache<T>,
    ) -> Result<(String, Found<T>), ApiError> {
        let key = object.key();
        if let Some(previous) = before.objects.get(&key) {
            object.share(previous);
        }
        let bytes = object.weight() + size_of::<T>() + 2 * key.len() + ENTRY_BYTES;
        let head = object.head();
        let weight = Weight { bytes, ended: head.phase.is_some() };
        self.forget_weight(&key);
        let found = if self.has_room_for(weight) {
            self.add_weight(&key, weight);
            Found::Object(Arc::new(object))
        } else {
            if !weight.ended {
                let smallest = self.smallest_left_out.map_or(bytes, |known| known.min(bytes));
                self.smallest_left_out = Some(smallest);
            }
            self.leave_out(&key, head, ApiError::TooMuch)?
        };
        Ok((key, found))
    }

    fn has_room_for(&self, weight: Weight) -> bool {
        let fits = |taken: usize, most| taken.saturating_add(weight.bytes) <= most;
        fits(self.weight, T::MAX_WEIGHT)
            && (!weight.ended || fits(self.weight_of_ended, T::MAX_WEIGHT / 4 * 3))
    }

    /// Leaves an object out, where the watch need not fail over it. What is kept of it weighs, too,
    /// and may exceed the bound by an eighth.
    fn leave_out(
        &mut self,
        key: &str,
        head: ObjectHead,
        error: ApiError,
    ) -> Result<Found<T>, ApiError> {
        let why = error.to_string();
        self.forget_weight(key);
        let bytes = 3 * key.len() + head.uid.len() + why.len() + ENTRY_BYTES;
        self.add_weight(key, Weight { bytes, ended: false });
        if !T::LEAVES_OUT || key.is_empty() || head.uid.is_empty() {
            return Err(error);
        }
        if self.weight > T::MAX_WEIGHT + T::MAX_WEIGHT / 8 {
            return Err(ApiError::TooMuch);
        }
        Ok(Found::LeftOut(LeftOut { head, why }))
    }

    fn forget_weight(&mut self, key: &str) {
        let Some(Weight { bytes, ended }) = self.weights.remove(key) else { return };
        self.weight = self.weight.saturating_sub(bytes);
        if ended {
            self.weight_of_ended = self.weight_of_ended.saturating_sub(bytes);
        }
    }

    fn add_weight(&mut self, key: &str, weight: Weight) {
        let Weight { bytes, ended } = weight;
        self.weights.insert(key.to_owned(), weight);
        self.weight = self.weight.saturating_add(bytes);
        if ended {
            self.weight_of_ended = self.weight_of_ended.saturating_add(bytes);
        }
    }

    /// Drops an object; whether that is to be published at once.
    pub(super) fn remove(&mut self, key: &str) -> bool {
        self.forget_weight(key);
        match &mut self.coming {
            Some(coming) => {
                coming.remove(key);
                false
            }
            None => true,
        }
    }

    /// True when an object that was left out would fit by now, and an eighth of the room that ended
    /// ones leave would still be free: what the server has is to be shown again. There is as much
    /// room only when others have gone since, so what is shown then does not lead to this again.
    pub(super) fn has_room_again(&self) -> bool {
        let free = T::MAX_WEIGHT.saturating_sub(self.weight_of_ended) / 8;
        self.is_whole()
            && self
                .smallest_left_out
                .is_some_and(|bytes| self.weight.saturating_add(bytes) <= T::MAX_WEIGHT - free)
    }

    /// Whether another watch may go on from here: everything was shown, not too long ago.
    pub(super) fn can_go_on(&self, resync: Duration) -> bool {
        self.is_whole() && self.since.elapsed() < resync
    }

    /// True when everything was shown.
    pub(super) fn is_whole(&self) -> bool {
        self.coming.is_none()
    }

    /// Everything, the first time that it is asked for: it was shown now.
    pub(super) fn take_all(&mut self) -> Option<WatchCache<T>> {
        let all = self.coming.take()?;
        Some(WatchCache { whole: true, live: true, ..all })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::model::TerminalPhase;

    /// An object of a size of its own.
    #[derive(Clone, Debug, serde::Deserialize)]
    struct Thing<const LEAVES_OUT: bool> {
        name: String,
        weight: usize,
        #[serde(skip)]
        phase: Option<TerminalPhase>,
    }

    impl<const LEAVES_OUT: bool> Watched for Thing<LEAVES_OUT> {
        const MAX_WEIGHT: usize = 100_000;
        const LEAVES_OUT: bool = LEAVES_OUT;

        fn key(&self) -> String {
            self.name.clone()
        }

        fn weight(&self) -> usize {
            self.weight
        }

        fn head(&self) -> ObjectHead {
            ObjectHead { phase: self.phase, ..head() }
        }
    }

    fn head() -> ObjectHead {
        ObjectHead { uid: "uid".to_owned(), ..ObjectHead::default() }
    }

    fn thing<const LEAVES_OUT: bool>(name: &str, weight: usize) -> MaybeRead<Thing<LEAVES_OUT>> {
        Ok(Thing { name: name.to_owned(), weight, phase: None })
    }

    fn ended(name: &str, weight: usize) -> MaybeRead<Thing<true>> {
        Ok(Thing { name: name.to_owned(), weight, phase: Some(TerminalPhase::Failed) })
    }

    fn unread<T>(key: &str) -> MaybeRead<T> {
        Err(Box::new(Unread { key: key.to_owned(), head: head(), error: ApiError::TooMany(7) }))
    }

    #[test]
    fn one_object_that_is_too_large_hides_no_other() {
        let (mut seen, nothing) = (Seen::default(), WatchCache::default());
        let mut take = |taken: MaybeRead<Thing<true>>| seen.take(taken, &nothing).map(drop);
        assert_eq!(take(thing("first", 60_000)), Ok(()));
        assert_eq!(take(thing("second", 60_000)), Ok(()));
        assert_eq!(take(unread("third")), Ok(()));
        assert_eq!(take(thing("fourth", 10_000)), Ok(()));
        // It was small enough before.
        assert_eq!(take(thing("fifth", 1)), Ok(()));
        assert_eq!(take(thing("fifth", 60_000)), Ok(()));
        assert_eq!(take(unread("")), Err(ApiError::TooMany(7)), "which one is not known");
        let mut picture = seen.take_all().unwrap();
        assert!(picture.whole && picture.live && seen.take_all().is_none());
        assert_eq!(picture.objects.keys().collect::<Vec<_>>(), ["first", "fourth"]);
        let why: Vec<_> =
            picture.left_out.iter().map(|(key, one)| (key.as_str(), one.why.as_str())).collect();
        let too_much = "the watch shows more than the agent keeps";
        let too_many = "the object has more than 7 values";
        assert_eq!(why, [("fifth", too_much), ("second", too_much), ("third", too_many)]);
        // From now on each change is published at once.
        let (key, found) = seen.take(thing("second", 1), &picture).unwrap().unwrap();
        picture.put(key, found);
        assert!(picture.objects.contains_key("second"));
        assert!(!picture.left_out.contains_key("second"));
    }

    #[test]
    fn a_watch_may_also_fail_over_one_object() {
        let (mut seen, nothing) = (Seen::default(), WatchCache::default());
        let mut take = |taken: MaybeRead<Thing<false>>| seen.take(taken, &nothing).map(drop);
        assert_eq!(take(unread("first")), Err(ApiError::TooMany(7)));
        assert_eq!(take(thing("second", 200_000)), Err(ApiError::TooMuch));
    }

    #[test]
    fn objects_that_are_left_out_have_a_bound() {
        let (mut seen, nothing) = (Seen::<Thing<true>>::default(), WatchCache::default());
        let mut outcomes =
            (0..1000).map(|n| seen.take(unread(&format!("{n}")), &nothing).map(drop));
        assert_eq!(outcomes.find(Result::is_err), Some(Err(ApiError::TooMuch)));
    }

    #[test]
    fn pods_that_have_ended_leave_room_for_others() {
        let (mut seen, nothing) = (Seen::default(), WatchCache::default());
        let mut take = |taken: MaybeRead<Thing<true>>| seen.take(taken, &nothing).map(drop);
        for taken in [ended("a", 35_000), ended("b", 35_000), ended("c", 35_000)] {
            assert_eq!(take(taken), Ok(()));
        }
        assert_eq!(take(thing("d", 25_000)), Ok(()));
        // It ran first. Now that it has ended, it does not fit any more.
        assert_eq!(take(thing("e", 2_000)), Ok(()));
        assert_eq!(take(ended("e", 20_000)), Ok(()));
        assert_eq!(take(ended("a", 1_000)), Ok(()));
        assert_eq!(take(ended("c", 30_000)), Ok(()), "there is room again");
        let picture = seen.take_all().unwrap();
        assert_eq!(picture.objects.keys().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        let left_out: Vec<_> =
            picture.left_out.iter().map(|(key, one)| (key.as_str(), one.head.phase)).collect();
        assert_eq!(left_out, [("e", Some(TerminalPhase::Failed))]);
    }

    #[test]
    fn room_for_what_was_left_out_is_noticed() {
        let (mut seen, nothing) = (Seen::default(), WatchCache::default());
        let take = |seen: &mut Seen<_>, taken: MaybeRead<Thing<true>>| {
            assert!(seen.take(taken, &nothing).is_ok());
            seen.has_room_again()
        };
        for taken in [thing("a", 40_000), thing("b", 40_000), ended("c", 30_000)] {
            assert!(!take(&mut seen, taken));
        }
        seen.take_all();
        assert!(!take(&mut seen, thing("a", 1_000)), "only a pod that has ended is left out");
        assert!(!take(&mut seen, thing("a", 40_000)));
        assert!(!take(&mut seen, thing("d", 30_000)));
        assert!(!take(&mut seen, thing("b", 25_000)), "there is room, but hardly more");
        seen.remove("b");
        assert!(seen.has_room_again());
    }

    #[test]
    fn ended_pods_do_not_delay_what_was_left_out() {
        let (mut seen, nothing) = (Seen::default(), WatchCache::default());
        let mut take = |taken: MaybeRead<Thing<true>>| assert!(seen.take(taken, &nothing).is_ok());
        take(ended("a", 70_000));
        take(thing("b", 20_000));
        take(thing("c", 15_000));
        seen.take_all();
        assert!(!seen.has_room_again());
        assert!(seen.take(thing("b", 8_000), &nothing).is_ok());
        assert!(seen.has_room_again(), "a part of what the ended pod leaves is free");
    }
}
