//! The topics: created by `guanxi migrate`, looked at by every start.

use std::time::Duration;

use guanxi_model::places::SHARDS;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::RDKafkaErrorCode;

use super::{ASK_TIMEOUT, BrokerError, KafkaSettings, Quiet};

/// Replicas of a topic, where there are as many brokers.
const REPLICAS_MAX: usize = 3;
/// Of so many replicas, those that must have a record before it is acknowledged: one may be lost,
/// and the log loses nothing. Of fewer, one that is away would stop all writing.
const IN_SYNC_MIN: &str = "2";
/// Dead letters are few; their order does not matter.
const DEAD_LETTER_PARTITIONS: u32 = 1;
/// How long the brokers may take to create a topic.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum TopicError {
    #[error(transparent)]
    Log(#[from] BrokerError),
    #[error(
        "log.partitions is {0}, which does not divide {SHARDS}: choose 1, 2, 4, 8, 16, 32 or 64"
    )]
    Partitions(u32),
    #[error(
        "the topic {topic} has {found} partitions, the settings say {wanted}: set \
         log.partitions to {found}, or name another topic"
    )]
    Differs { topic: String, found: usize, wanted: u32 },
    #[error("the topic {0} does not exist: run guanxi migrate")]
    Missing(String),
    #[error("the changefeed's topic {0} does not exist: create the changefeed first")]
    NoChangefeed(String),
}

/// Creates what is missing and checks what is there; returns the topics that it created.
pub fn create_topics(settings: &KafkaSettings) -> Result<Vec<String>, TopicError> {
    let admin: AdminClient<Quiet> =
        settings.client().create_with_context(Quiet).map_err(BrokerError::from)?;
    let (brokers, missing) = look(&admin, settings)?;
    let replicas = i32::try_from(brokers.clamp(1, REPLICAS_MAX)).unwrap_or(1);
    let mut created = Vec::new();
    for (topic, partitions) in missing {
        let count = i32::try_from(partitions).map_err(|_| TopicError::Partitions(partitions))?;
        let mut wanted = NewTopic::new(&topic, count, TopicReplication::Fixed(replicas));
        if brokers >= REPLICAS_MAX {
            wanted = wanted.set("min.insync.replicas", IN_SYNC_MIN);
        }
        let options = AdminOptions::new()
            .request_timeout(Some(CREATE_TIMEOUT))
            .operation_timeout(Some(CREATE_TIMEOUT));
        let done = wait(admin.create_topics([&wanted], &options))?.map_err(BrokerError::from)?;
        for result in done {
            match result {
                // Another migration was faster; it is checked below.
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => {
                    let text = format!("the topic {topic} could not be created: {code}");
                    return Err(BrokerError::Permanent(text).into());
                }
            }
        }
        created.push(topic);
    }
    if !created.is_empty() {
        seen(&admin, settings)?;
    }
    tell_if_lightly_kept(&admin, settings);
    Ok(created)
}

/// Refuses topics that are missing or have another number of partitions; that of a changefeed too,
/// whose further partitions nobody would read.
pub fn check_topics(settings: &KafkaSettings, changefeed: Option<&str>) -> Result<(), TopicError> {
    let admin: AdminClient<Quiet> =
        settings.client().create_with_context(Quiet).map_err(BrokerError::from)?;
    if let Some((topic, _)) = look(&admin, settings)?.1.pop() {
        return Err(TopicError::Missing(topic));
    }
    tell_if_lightly_kept(&admin, settings);
    let Some(changefeed) = changefeed else {
        return Ok(());
    };
    let known = admin.inner().fetch_metadata(None, ASK_TIMEOUT).map_err(BrokerError::from)?;
    let topic = known.topics().iter().find(|topic| topic.name() == changefeed);
    let topic = topic.ok_or_else(|| TopicError::NoChangefeed(changefeed.to_owned()))?;
    let (found, wanted) = (topic.partitions().len(), settings.partitions);
    match found == wanted as usize {
        true => Ok(()),
        false => Err(TopicError::Differs { topic: changefeed.to_owned(), found, wanted }),
    }
}

/// Says so where the topic could be kept more safely than it is: it was made by another, or while a
/// broker was away. It may be meant, so nobody but its owner changes it.
fn tell_if_lightly_kept(admin: &AdminClient<Quiet>, settings: &KafkaSettings) {
    if let Err(error) = look_how_it_is_kept(admin, settings) {
        tracing::debug!(%error, "how the topic is kept could not be looked at");
    }
}

fn look_how_it_is_kept(
    admin: &AdminClient<Quiet>,
    settings: &KafkaSettings,
) -> Result<(), BrokerError> {
    let known = admin.inner().fetch_metadata(None, ASK_TIMEOUT)?;
    let topic = known.topics().iter().find(|topic| topic.name() == settings.topic);
    let partitions = topic.map_or(&[][..], |topic| topic.partitions());
    let replicas = partitions.iter().map(|part| part.replicas().len()).min().unwrap_or_default();
    if replicas < REPLICAS_MAX {
        let (topic, brokers) = (&settings.topic, known.brokers().len());
        if brokers >= REPLICAS_MAX {
            tracing::warn!(
                topic,
                replicas,
                brokers,
                "the topic has fewer than {REPLICAS_MAX} replicas though there are as many \
                 brokers: what is lost with them is lost to the log. Give it {REPLICAS_MAX}, and \
                 min.insync.replicas = {IN_SYNC_MIN}"
            );
        }
        return Ok(());
    }
    let asked = [ResourceSpecifier::Topic(&settings.topic)];
    let options = AdminOptions::new().request_timeout(Some(ASK_TIMEOUT));
    let described = wait(admin.describe_configs(&asked, &options))??;
    let set = described.iter().flatten().find_map(|found| found.get("min.insync.replicas"));
    if set.is_some_and(|entry| entry.value.as_deref() == Some("1")) {
        let topic = &settings.topic;
        tracing::warn!(
            topic,
            replicas,
            "min.insync.replicas is 1: what one broker alone has is acknowledged, and goes with \
             it. Set it to {IN_SYNC_MIN}"
        );
    }
    Ok(())
}

/// Waits until the brokers tell of what was just created.
fn seen(admin: &AdminClient<Quiet>, settings: &KafkaSettings) -> Result<(), TopicError> {
    let deadline = std::time::Instant::now() + CREATE_TIMEOUT;
    loop {
        match look(admin, settings)?.1.pop() {
            None => return Ok(()),
            Some((topic, _)) if std::time::Instant::now() > deadline => {
                return Err(TopicError::Missing(topic));
            }
            Some(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// How many brokers there are, and the topics that are missing with their partitions.
fn look(
    admin: &AdminClient<Quiet>,
    settings: &KafkaSettings,
) -> Result<(usize, Vec<(String, u32)>), TopicError> {
    let partitions = settings.partitions;
    if partitions == 0 || !u32::from(SHARDS).is_multiple_of(partitions) {
        return Err(TopicError::Partitions(partitions));
    }
    // All topics: to ask for one by name may create it.
    let found = admin.inner().fetch_metadata(None, ASK_TIMEOUT).map_err(BrokerError::from)?;
    let mut missing = Vec::new();
    let wanted = [
        (&settings.dead_letter_topic, DEAD_LETTER_PARTITIONS),
        (&settings.topic, settings.partitions),
    ];
    for (name, partitions) in wanted {
        match found.topics().iter().find(|topic| topic.name() == name) {
            None => missing.push((name.clone(), partitions)),
            // Any number does for dead letters.
            Some(topic) if *name == settings.topic => {
                let found = topic.partitions().len();
                if found != partitions as usize {
                    let topic = name.clone();
                    return Err(TopicError::Differs { topic, found, wanted: partitions });
                }
            }
            Some(_) => {}
        }
    }
    Ok((found.brokers().len(), missing))
}

/// The driver's admin calls are futures; this thread waits for them.
pub(super) fn wait<F: Future>(future: F) -> Result<F::Output, BrokerError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| BrokerError::Passing(error.to_string()))?;
    Ok(runtime.block_on(future))
}
