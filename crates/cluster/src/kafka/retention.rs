//! For how long the log's topics really keep their records: what the brokers say, not what anyone
//! meant to set.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};

use super::topics::wait;
use super::{ASK_TIMEOUT, BrokerError, KafkaSettings, Quiet};

/// The longest of the topics' times, ours and another; none when one keeps records for ever.
pub(crate) fn longest_retention(
    settings: &KafkaSettings,
    other: Option<&str>,
) -> Result<Option<Duration>, BrokerError> {
    let admin: AdminClient<Quiet> = settings.client().create_with_context(Quiet)?;
    let mut topics = vec![settings.topic.as_str(), settings.dead_letter_topic.as_str()];
    topics.extend(other);
    let wanted: Vec<_> = topics.iter().copied().map(ResourceSpecifier::Topic).collect();
    let options = AdminOptions::new().request_timeout(Some(ASK_TIMEOUT));
    let asked = admin.describe_configs(&wanted, &options);
    let described = wait(asked)??;
    let mut longest = Duration::ZERO;
    for (topic, described) in topics.iter().zip(described) {
        let described = described.map_err(|code| {
            BrokerError::Passing(format!("the settings of {topic} could not be read: {code}"))
        })?;
        let value = |name: &str| described.get(name).and_then(|entry| entry.value.clone());
        // A compacted topic keeps the last record of each key, however old.
        if value("cleanup.policy").is_none_or(|policy| policy.contains("compact")) {
            return Ok(None);
        }
        let number = |name: &str| value(name).and_then(|value| value.parse::<i64>().ok());
        let kept = number("retention.ms").and_then(|kept| u64::try_from(kept).ok());
        // A record goes with its segment, whose last record may be so much younger.
        let open = number("segment.ms").and_then(|open| u64::try_from(open).ok());
        let (Some(kept), Some(open)) = (kept, open) else {
            return Ok(None);
        };
        longest = longest.max(Duration::from_millis(kept.saturating_add(open)));
    }
    Ok(Some(longest))
}
