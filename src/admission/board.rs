//! The resources of the node: which pods keep them, which pods are stopping, and what is left.

use super::{
    ports::{HostPort, any_conflict},
    preempt,
    refusal::Refusal,
    resources::{Needs, Resource, Room, Shortage},
};
use crate::model::{Order as _, PodKey, ResizeWait, k8s};

/// A pod with what it takes.
pub(super) struct Occupant<'a> {
    pub(super) key: &'a PodKey,
    pub(super) pod: &'a k8s::Pod,
    pub(super) needs: Needs,
    /// It is not known yet whether it is stopped.
    pub(super) undecided: bool,
    ports: Vec<HostPort<'a>>,
}

impl<'a> Occupant<'a> {
    pub(super) fn new(key: &'a PodKey, pod: &'a k8s::Pod) -> Self {
        Self { key, pod, needs: Needs::of(pod), undecided: false, ports: HostPort::of(pod) }
    }
}

/// Pods that make room for a critical one.
#[derive(Default)]
pub(super) struct Victims {
    keys: Vec<PodKey>,
    /// The first resource that the critical pod lacks.
    lacks: Option<Resource>,
}

/// A pod that is preempted.
pub(super) struct Preempted<'a> {
    pub(super) key: &'a PodKey,
    pub(super) pod: &'a k8s::Pod,
    /// The first resource that the critical pod lacks.
    pub(super) lacks: Option<Resource>,
}

/// The room of the node.
pub(super) struct Board<'a> {
    room: Room<'a>,
    staying: Vec<Occupant<'a>>,
    going: Vec<Occupant<'a>>,
    /// The resources of all pods that stay.
    taken: Needs,
    preempted: Vec<Preempted<'a>>,
}

impl<'a> Board<'a> {
    pub(super) fn new(room: Room<'a>) -> Self {
        Self {
            room,
            staying: Vec::new(),
            going: Vec::new(),
            taken: Needs::default(),
            preempted: Vec::new(),
        }
    }

    /// Reserves the resources of a pod.
    pub(super) fn stays(&mut self, occupant: Occupant<'a>) {
        self.taken.add(&occupant.needs);
        self.staying.push(occupant);
    }

    /// Notes what a pod takes until it has stopped.
    pub(super) fn goes(&mut self, occupant: Occupant<'a>) {
        self.going.push(occupant);
    }

    /// What is missing for a pod, also once everything that is going has gone.
    pub(super) fn shortages(&self, occupant: &Occupant<'_>) -> Vec<Shortage> {
        occupant.needs.shortages(self.room, &self.taken)
    }

    /// Gives a pod that stays the resources of `larger`, the same pod as it is to be, if there is
    /// room for what is more.
    pub(super) fn resize(&mut self, larger: Occupant<'a>) -> Option<ResizeWait> {
        let place = self.staying.iter_mut().find(|staying| staying.key == larger.key)?;
        let more = larger.needs.clone().without(&place.needs);
        let others = std::mem::take(&mut self.taken).without(&place.needs);
        let is_more = |shortage: &Shortage| more.get(&shortage.resource) > 0;
        let mut alone = larger.needs.shortages(self.room, &Needs::default()).into_iter();
        let mut beside = larger.needs.shortages(self.room, &others).into_iter();
        let wait = match (alone.find(is_more), beside.find(is_more)) {
            (Some(shortage), _) => Some(shortage.infeasible()),
            (None, Some(shortage)) => Some(shortage.deferred()),
            (None, None) => {
                *place = larger;
                None
            }
        };
        self.taken = others;
        self.taken.add(&place.needs);
        wait
    }

    /// Whether its ports of the node are free, once everything that is going has gone.
    pub(super) fn ports_free(&self, occupant: &Occupant<'_>) -> Result<(), Refusal> {
        match self.staying.iter().any(|other| any_conflict(&occupant.ports, &other.ports)) {
            true => Err(Refusal::node_ports()),
            false => Ok(()),
        }
    }

    /// What a pod, for which there will be room, waits for. Not for its own predecessor: the worker
    /// of its name starts nothing before that is gone.
    pub(super) fn waits_for(&self, occupant: &Occupant<'_>) -> Option<String> {
        let mut others: Vec<&Occupant<'_>> =
            self.going.iter().filter(|going| going.key != occupant.key).collect();
        let mut now = self.taken.clone();
        for going in &others {
            // Where another one follows under its name, the room of both is that of the larger one.
            let follows = self.staying.iter().find(|staying| staying.key == going.key);
            let more = going.needs.clone();
            now.add(&follows.map_or(more.clone(), |staying| more.without(&staying.needs)));
        }
        let full = !occupant.needs.shortages(self.room, &now).is_empty();
        let blocks = |going: &&Occupant<'_>| any_conflict(&occupant.ports, &going.ports);
        if others.is_empty() || !full && !others.iter().any(blocks) {
            return None;
        }
        others.order_by_key(|going| going.key);
        let names = |undecided: bool| {
            let those = others.iter().filter(|going| going.undecided == undecided);
            those.map(|going| going.key.to_string()).collect::<Vec<String>>().join(", ")
        };
        let parts =
            [("that are being stopped", names(false)), ("that may still be removed", names(true))];
        let told = parts.iter().filter(|(_, names)| !names.is_empty());
        let told: Vec<String> = told.map(|(how, names)| format!("{how}: {names}")).collect();
        Some(format!("it needs resources of pods {}", told.join("; or ")))
    }

    /// Chooses the victims among the pods that may be preempted.
    pub(super) fn victims(
        &self,
        shortages: &[Shortage],
        may_go: impl Fn(&k8s::Pod) -> bool,
    ) -> Result<Victims, Refusal> {
        let missing = shortages.iter().map(|s| (s.resource.clone(), s.missing())).collect();
        let others = self.staying.iter().filter(|staying| may_go(staying.pod));
        let keys = preempt::victims(&missing, others);
        let keys = keys.map_err(|missing| Refusal::no_victims(&missing))?;
        Ok(Victims { keys, lacks: shortages.first().map(|first| first.resource.clone()) })
    }

    /// Moves the victims from the pods that stay to the pods that are stopped.
    pub(super) fn preempt(&mut self, Victims { keys, lacks }: &Victims) {
        let (going, staying): (Vec<_>, Vec<_>) = std::mem::take(&mut self.staying)
            .into_iter()
            .partition(|occupant| keys.contains(occupant.key));
        self.staying = staying;
        for occupant in going {
            self.taken = std::mem::take(&mut self.taken).without(&occupant.needs);
            let (key, pod, lacks) = (occupant.key, occupant.pod, lacks.clone());
            self.preempted.push(Preempted { key, pod, lacks });
            self.going.push(occupant);
        }
    }

    /// The pods that are preempted.
    pub(super) fn preempted(self) -> Vec<Preempted<'a>> {
        self.preempted
    }
}
