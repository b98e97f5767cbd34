//! AppArmor profiles in annotations, the only form before `securityContext.appArmorProfile` existed.

/// The key of the annotation for a container ends in its name.
pub const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Whether the text of such an annotation names a profile. As in the kubelet, another text counts as
/// no annotation: a typo must not switch off the confinement that a container has without one.
#[must_use]
pub fn names_app_armor_profile(text: &str) -> bool {
    matches!(text, "runtime/default" | "unconfined")
        || text.strip_prefix("localhost/").is_some_and(|name| !name.is_empty())
}
