//! Whether a field that is not acted on asks for anything: kubeadm writes many fields with the
//! value that the kubelet reads as "not set", and those need no report.

use crate::{
    document::{Field, Node, Type, Value},
    model::{Quantity, parse_duration},
};

/// Whether the value of the field means the same as no value.
pub(super) fn is_unset(field: &Field, node: &Node) -> bool {
    let zero_counts = field.setting.is_some_and(|setting| setting.zero_counts);
    match (&node.value, field.ty) {
        (Value::Null, _) => true,
        (Value::Bool(on), _) => !on && !zero_counts,
        (Value::Number(n), _) => n.as_f64() == Some(0.0) && !zero_counts,
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
            // An unknown field is reported as one.
            field.is_none_or(|field| is_unset(field, &entry.value))
        }),
        (Value::Map(entries), _) => entries.is_empty(),
    }
}
