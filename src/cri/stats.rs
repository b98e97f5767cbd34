//! What containers' writable layers take, asked one container at a time.
//!
//! containerd asks the container's shim for the rest of the numbers: one whose shim hangs does not
//! answer, and a list of all of them would not, either. So it is a list of one that is asked for:
//! unlike the call for a single one it tells of containers without a process, whose layers are
//! there until they are removed.

use super::{
    CriError, RuntimeClient,
    client::{empty, within},
    from_cri::time,
    v1,
};
use crate::model::{ContainerId, Space};
use jiff::Timestamp;
use std::{collections::BTreeMap, time::Duration};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout_at},
};

/// A container's writable layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// What it takes.
    pub space: Space,
    /// When the runtime measured that: containerd does so every 10 s.
    pub measured_at: Timestamp,
}

/// What was answered for each container that was asked for.
pub type Layers = BTreeMap<ContainerId, Result<Layer, CriError>>;

impl RuntimeClient {
    /// What a container's writable layer takes, whether it runs or has ended. `deadline` counts in
    /// place of the one for all reads.
    ///
    /// # Errors
    /// As every read: see [`CriError`]. `Other` for a container that was not measured yet.
    pub async fn writable_layer(
        &self,
        id: &ContainerId,
        deadline: Duration,
    ) -> Result<Layer, CriError> {
        let filter = v1::ContainerStatsFilter { id: id.to_string(), ..Default::default() };
        let request = v1::ListContainerStatsRequest { filter: Some(filter) };
        let mut runtime = self.runtime.clone();
        let call = runtime.list_container_stats(request);
        let answer = within(deadline, "ListContainerStats", &self.endpoint, call).await?;
        let is_it = |stats: &&v1::ContainerStats| {
            stats.attributes.as_ref().is_some_and(|attributes| attributes.id == id.as_str())
        };
        let layer = answer.stats.iter().find(is_it).and_then(|stats| stats.writable_layer.as_ref());
        layer.and_then(from_usage).ok_or_else(|| empty("ListContainerStats"))
    }

    /// The memory in bytes that a container uses and cannot give back: its working set.
    ///
    /// # Errors
    /// See [`CriError`].
    pub async fn working_set(&self, id: &ContainerId) -> Result<u64, CriError> {
        let filter = v1::ContainerStatsFilter { id: id.to_string(), ..Default::default() };
        let request = v1::ListContainerStatsRequest { filter: Some(filter) };
        let mut runtime = self.runtime.clone();
        let call = runtime.list_container_stats(request);
        let answer = self.read("ListContainerStats", call).await?;
        let memory = answer.stats.into_iter().find_map(|stats| stats.memory?.working_set_bytes);
        memory.map(|bytes| bytes.value).ok_or_else(|| empty("ListContainerStats"))
    }

    /// The same for several containers, `at_once` of them at a time. Each has its own deadline: one
    /// that does not answer takes one of the turns for that long, and no more. What has not been
    /// answered `within` this time from the beginning is missing.
    ///
    /// # Cancel safety
    /// Nothing is lost but the answers.
    pub async fn writable_layers(
        &self,
        ids: &[ContainerId],
        at_once: usize,
        deadline: Duration,
        within: Duration,
    ) -> Layers {
        let until = Instant::now() + within;
        let mut waiting = ids.iter().cloned();
        let mut calls = JoinSet::new();
        let mut layers = Layers::new();
        loop {
            while calls.len() < at_once.max(1) {
                let Some(id) = waiting.next() else { break };
                let client = self.clone();
                calls.spawn(async move {
                    let layer = client.writable_layer(&id, deadline).await;
                    (id, layer)
                });
            }
            match timeout_at(until, calls.join_next()).await {
                Ok(Some(Ok((id, layer)))) => drop(layers.insert(id, layer)),
                // It panicked: there is no answer for it.
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => return layers,
            }
        }
    }
}

fn from_usage(usage: &v1::FilesystemUsage) -> Option<Layer> {
    // containerd tells of nothing used at no time before it has measured a layer.
    if usage.timestamp == 0 {
        return None;
    }
    // Inodes are told by no runtime for file systems that count none.
    let inodes = usage.inodes_used.as_ref().map_or(0, |inodes| inodes.value);
    let space = Space { bytes: usage.used_bytes.as_ref()?.value, inodes };
    Some(Layer { space, measured_at: time(usage.timestamp) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_layer_without_bytes_or_a_time_was_not_measured() {
        let value = |value| Some(v1::UInt64Value { value });
        let usage = v1::FilesystemUsage {
            timestamp: 2_000_000_000,
            used_bytes: value(4096),
            inodes_used: value(3),
            ..Default::default()
        };
        let layer = from_usage(&usage).unwrap();
        assert_eq!(layer.space, Space { bytes: 4096, inodes: 3 });
        assert_eq!(layer.measured_at, Timestamp::from_second(2).unwrap());
        assert_eq!(from_usage(&v1::FilesystemUsage { timestamp: 0, ..usage.clone() }), None);
        assert_eq!(from_usage(&v1::FilesystemUsage { used_bytes: None, ..usage }), None);
    }
}
