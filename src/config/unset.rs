//! Whether a field that is not acted on asks for anything: kubeadm writes many fields with the
//! value that the kubelet reads as "not set", and those need no report.

use super::fields::{KUBELET, field_at};
use crate::{
    document::{Node, Type, Value},
    model::{Quantity, parse_duration},
};

/// Fields whose `false` or 0 differs from not being set, because the kubelet's default is another
/// value and their Go type is a pointer.
const ZERO_IS_A_VALUE: [&str; 9] = [
    "enableServer",
    "authentication.webhook.enabled",
    "enableDebuggingHandlers",
    "makeIPTablesUtilChains",
    "iptablesMasqueradeBit",
    "iptablesDropBit",
    "enableSystemLogHandler",
    "enableProfilingHandler",
    "enableDebugFlagsHandler",
];

/// Whether the value of the KubeletConfiguration field at `path` means the same as no value.
pub(super) fn is_unset(path: &str, node: &Node) -> bool {
    field_at(KUBELET, path).is_some_and(|field| is_zero(path, &field.ty, node))
}

fn is_zero(path: &str, ty: &Type, node: &Node) -> bool {
    match (&node.value, ty) {
        (Value::Null, _) => true,
        (Value::Bool(on), _) => !on && !ZERO_IS_A_VALUE.contains(&path),
        (Value::Number(n), _) => n.as_f64() == Some(0.0) && !ZERO_IS_A_VALUE.contains(&path),
        (Value::String(text), Type::Quantity) => Quantity::parse(text).is_ok_and(Quantity::is_zero),
        (Value::String(text), Type::Duration | Type::Any) => {
            parse_duration(text).is_some_and(|duration| duration.is_zero())
        }
        // "0" is a CPU in reservedSystemCPUs. "0s" stands in volumeStatsAggPeriod, which is text
        // here.
        (Value::String(text), _) => text.is_empty() || text == "0s",
        (Value::List(items), _) => items.is_empty(),
        (Value::Map(entries), Type::Object(fields)) => entries.iter().all(|entry| {
            let field = fields.iter().find(|field| field.name == entry.key);
            let path = format!("{path}.{}", entry.key);
            // An unknown field is reported as one.
            field.is_none_or(|field| is_zero(&path, &field.ty, &entry.value))
        }),
        (Value::Map(entries), _) => entries.is_empty(),
    }
}
