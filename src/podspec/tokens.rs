//! The service account tokens that a pod mounts, and the access to their files.

use super::{
    all_containers,
    files::{is_mounted, projections},
    uid_of,
};
use crate::model::{TokenKey, k8s};
use std::borrow::Cow;

/// The lifetime of a token when the pod asks for none, in seconds.
const DEFAULT_EXPIRATION_SECONDS: i64 = 3600;
/// The permission bits of a token that only its owner may read.
const PRIVATE_MODE: i32 = 0o600;

/// The tokens of the volumes that containers mount, in the order of the fields, each once.
#[must_use]
pub fn token_keys(pod: &k8s::Pod) -> Vec<TokenKey> {
    let mut keys = Vec::new();
    let Some(spec) = &pod.spec else { return keys };
    let volumes = spec.volumes.iter().flatten().filter(|volume| is_mounted(spec, &volume.name));
    for source in volumes.flat_map(token_sources) {
        let key = token_key(pod, source);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// The token sources of a volume.
pub(super) fn token_sources(
    volume: &k8s::Volume,
) -> impl Iterator<Item = &k8s::ServiceAccountTokenProjection> {
    projections(volume).filter_map(|source| source.service_account_token.as_ref())
}

/// The key of the token that a source requests.
pub(super) fn token_key(pod: &k8s::Pod, source: &k8s::ServiceAccountTokenProjection) -> TokenKey {
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    TokenKey {
        pod: uid_of(pod),
        service_account: account.filter(|name| !name.is_empty()).unwrap_or("default").into(),
        audience: source.audience.as_deref().unwrap_or_default().into(),
        expiration_seconds: source.expiration_seconds.unwrap_or(DEFAULT_EXPIRATION_SECONDS),
    }
}

/// The access to the file of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenAccess {
    /// The user that owns the file; `None` for root.
    pub(super) owner: Option<u32>,
    /// The permission bits; `None` for those of the volume.
    pub(super) mode: Option<i32>,
}

/// The rule of the kubelet: if all containers run as the same user, the file belongs to that user,
/// and only the owner can read it. With `fsGroup`, the volume adds access for the group as it does
/// for its other files, so the mode becomes 0640.
pub(super) fn token_access(pod: &k8s::Pod) -> TokenAccess {
    let owner = common_user(pod);
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let has_group = context.is_some_and(|context| context.fs_group.is_some());
    let mode = (owner.is_some() || has_group).then_some(PRIVATE_MODE);
    TokenAccess { owner, mode }
}

/// The user as which all containers run, ephemeral ones too. `None` when a container runs as the user
/// of its image.
fn common_user(pod: &k8s::Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let user = |container: Cow<'_, k8s::Container>| {
        container.security_context.as_ref().and_then(|context| context.run_as_user).or(of_pod)
    };
    let mut users = all_containers(spec).map(user);
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}
