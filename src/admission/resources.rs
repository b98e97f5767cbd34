//! What a pod takes of the node, in whole numbers: thousandths of a CPU, bytes, pods.

use super::Allocatable;
use crate::{
    model::{CollectOrdered as _, ResizeWait, is_extended_resource, k8s},
    podspec::effective_requests,
};
use std::{collections::BTreeMap, fmt};

/// A resource of the node. The order is the one in which shortages are reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Resource {
    Pods,
    /// In thousandths.
    Cpu,
    /// In bytes.
    Memory,
    /// In bytes.
    EphemeralStorage,
    /// In bytes; with the whole name, `hugepages-2Mi`.
    HugePages(Box<str>),
    /// In pieces; with the whole name, `example.com/dongle`.
    Extended(Box<str>),
}

impl Resource {
    /// The resource of that name; `None` for one that no node has.
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "cpu" => Some(Self::Cpu),
            "memory" => Some(Self::Memory),
            "ephemeral-storage" => Some(Self::EphemeralStorage),
            pages if pages.starts_with("hugepages-") => Some(Self::HugePages(pages.into())),
            name if is_extended_resource(name) => Some(Self::Extended(name.into())),
            _ => None,
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pods => "pods",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::HugePages(name) | Self::Extended(name) => name,
        })
    }
}

/// How much of each resource; what is not named is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Needs(BTreeMap<Resource, i64>);

impl Needs {
    /// What a pod takes: its place, and what it requests.
    pub(super) fn of(pod: &k8s::Pod) -> Self {
        let mut needs = BTreeMap::from([(Resource::Pods, 1)]);
        let requests = pod.spec.as_ref().map(effective_requests).unwrap_or_default();
        for (name, amount) in requests.iter() {
            if let Some(resource) = Resource::from_name(name) {
                let amount = match resource {
                    Resource::Cpu => amount.milli_value(),
                    Resource::Pods
                    | Resource::Memory
                    | Resource::EphemeralStorage
                    | Resource::HugePages(_)
                    | Resource::Extended(_) => amount.value(),
                };
                needs.insert(resource, amount);
            }
        }
        needs.retain(|_, amount| *amount > 0);
        Self(needs)
    }

    pub(super) fn get(&self, resource: &Resource) -> i64 {
        self.0.get(resource).copied().unwrap_or_default()
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (resource, amount) in &other.0 {
            let sum = self.0.entry(resource.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }

    /// What remains of it, resource by resource, once `other` is taken away.
    pub(super) fn without(mut self, other: &Self) -> Self {
        for (resource, amount) in &other.0 {
            if let Some(rest) = self.0.get_mut(resource) {
                *rest = rest.saturating_sub(*amount);
            }
        }
        self.0.retain(|_, amount| *amount > 0);
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Resource, i64)> {
        self.0.iter().map(|(resource, amount)| (resource, *amount))
    }

    /// The resources that the node does not have, in the order in which they are reported.
    pub(super) fn shortages(&self, room: Room<'_>, used: &Self) -> Vec<Shortage> {
        let short = |(resource, requested): (&Resource, i64)| {
            let capacity = room.of(resource)?;
            let used = used.get(resource);
            let shortage = Shortage { resource: resource.clone(), requested, used, capacity };
            (shortage.missing() > 0).then_some(shortage)
        };
        self.iter().filter_map(short).collect()
    }
}

impl FromIterator<(Resource, i64)> for Needs {
    fn from_iter<I: IntoIterator<Item = (Resource, i64)>>(amounts: I) -> Self {
        Self(amounts.into_iter().filter(|(_, amount)| *amount > 0).collect_ordered())
    }
}

/// A resource of which too little is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    pub(super) resource: Resource,
    pub(super) requested: i64,
    pub(super) used: i64,
    pub(super) capacity: i64,
}

impl Shortage {
    /// There will be room for a resize when other pods have gone.
    pub(super) fn deferred(&self) -> ResizeWait {
        ResizeWait { reason: "Deferred", message: self.to_string() }
    }

    /// There is never room for a resize.
    pub(super) fn infeasible(&self) -> ResizeWait {
        let Self { resource, requested, capacity, .. } = self;
        let message = format!(
            "Node didn't have enough capacity: {resource}, requested: {requested}, capacity: {capacity}"
        );
        ResizeWait { reason: "Infeasible", message }
    }

    /// How much more would have to be free.
    pub(super) fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

/// The kubelet's sentence.
impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, requested, used, capacity } = self;
        write!(
            f,
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        )
    }
}

/// What pods may take of the node.
#[derive(Clone, Copy)]
pub(super) struct Room<'a> {
    pub(super) allocatable: &'a Allocatable,
    /// Of the Node object; `None` where it is not known.
    pub(super) extended: Option<&'a BTreeMap<String, i64>>,
}

impl Room<'_> {
    /// `None`: no bound is known. As in the kubelet, an extended resource that the Node lacks is
    /// not counted: it is one of the whole cluster.
    fn of(&self, resource: &Resource) -> Option<i64> {
        let Self { allocatable, extended } = self;
        match resource {
            Resource::Pods => Some(allocatable.pods),
            Resource::Cpu => Some(allocatable.cpu_milli),
            Resource::Memory => Some(allocatable.memory_bytes),
            Resource::EphemeralStorage => allocatable.ephemeral_storage_bytes,
            Resource::HugePages(name) => {
                Some(allocatable.hugepages.get(&**name).copied().unwrap_or_default())
            }
            Resource::Extended(name) => extended.and_then(|all| all.get(&**name)).copied(),
        }
    }
}
