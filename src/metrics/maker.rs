//! Registers metrics, and notes what they are for their documentation.

use super::{Family, Kind};
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGaugeVec, Opts, Registry, core::Collector,
};

/// A family and its labels, for the documentation.
pub(super) type Described = (Family, &'static [&'static str]);

/// Registers metrics and notes what they are.
pub(super) struct Maker<'a> {
    pub(super) registry: &'a Registry,
    pub(super) described: &'a mut Vec<Described>,
}

impl Maker<'_> {
    fn register<T: Collector + Clone + 'static>(
        &mut self,
        made: prometheus::Result<T>,
        family: Family,
        labels: &'static [&'static str],
    ) -> T {
        let made = made.expect("its name and labels are valid");
        self.registry.register(Box::new(made.clone())).expect("its name is used once");
        self.described.push((family, labels));
        made
    }

    pub(super) fn counter(&mut self, name: &'static str, help: &'static str) -> IntCounter {
        let family = Family { name, kind: Kind::Counter, help };
        self.register(IntCounter::new(name, help), family, &[])
    }

    pub(super) fn counters(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> IntCounterVec {
        let family = Family { name, kind: Kind::Counter, help };
        self.register(IntCounterVec::new(Opts::new(name, help), labels), family, labels)
    }

    pub(super) fn gauges(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> GaugeVec {
        let family = Family { name, kind: Kind::Gauge, help };
        self.register(GaugeVec::new(Opts::new(name, help), labels), family, labels)
    }

    pub(super) fn gauge(&mut self, name: &'static str, help: &'static str) -> Gauge {
        let family = Family { name, kind: Kind::Gauge, help };
        self.register(Gauge::new(name, help), family, &[])
    }

    pub(super) fn histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        buckets: &[f64],
    ) -> Histogram {
        let family = Family { name, kind: Kind::Histogram, help };
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.register(Histogram::with_opts(options), family, &[])
    }

    pub(super) fn histograms(
        &mut self,
        name: &'static str,
        help: &'static str,
        buckets: &[f64],
        labels: &'static [&'static str],
    ) -> HistogramVec {
        let family = Family { name, kind: Kind::Histogram, help };
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.register(HistogramVec::new(options, labels), family, labels)
    }

    /// A gauge that can go up and down by one, for each combination of labels.
    pub(super) fn levels(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> IntGaugeVec {
        let family = Family { name, kind: Kind::Gauge, help };
        self.register(IntGaugeVec::new(Opts::new(name, help), labels), family, labels)
    }
}
