//! Asks for a topic's id. The driver knows how to, but its Rust face does not pass the question on,
//! so this file speaks to the driver itself: the only one here that does.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};
use std::ptr::{self, NonNull};
use std::time::Duration;

use rdkafka::bindings as driver;
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::KafkaError;

use super::BrokerError;
use super::lineage::TopicId;

/// The driver's own bound of a wait.
const WAIT_MS_MAX: u128 = 3_600_000;

/// The id of a topic that must exist; unknown where the brokers have no such ids. To ask creates
/// no topic.
pub(super) fn topic_id<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    wait: Duration,
) -> Result<TopicId, BrokerError> {
    let name = CString::new(topic)
        .map_err(|_| BrokerError::Permanent("a topic's name has no zero byte".into()))?;
    let wait_ms = wait.as_millis().min(WAIT_MS_MAX) as c_int;
    let client = client.native_ptr();
    // SAFETY: `client` lives as long as the borrow above. Each `Owned` is made from a fresh pointer
    // of the driver with the function that the driver names for giving it back, and given back
    // after its last use: the answer's parts are read while `event` stands. The name is copied by
    // the driver before the collection is made.
    unsafe {
        let queue = Owned::new(driver::rd_kafka_queue_new(client), driver::rd_kafka_queue_destroy)?;
        let options = driver::rd_kafka_AdminOptions_new(
            client,
            driver::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
        );
        let options = Owned::new(options, driver::rd_kafka_AdminOptions_destroy)?;
        driver::rd_kafka_AdminOptions_set_request_timeout(
            options.pointer(),
            wait_ms,
            ptr::null_mut(),
            0,
        );
        let mut names: [*const c_char; 1] = [name.as_ptr()];
        let topics = driver::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), 1);
        let topics = Owned::new(topics, driver::rd_kafka_TopicCollection_destroy)?;
        driver::rd_kafka_DescribeTopics(
            client,
            topics.pointer(),
            options.pointer(),
            queue.pointer(),
        );
        let event = driver::rd_kafka_queue_poll(queue.pointer(), wait_ms);
        let event = Owned::new(event, driver::rd_kafka_event_destroy)?;
        read(event.pointer())
    }
}

/// # Safety
/// The event is the driver's answer to the question, and stands while this reads it.
unsafe fn read(event: *mut driver::rd_kafka_event_t) -> Result<TopicId, BrokerError> {
    // SAFETY: what the driver hands out belongs to the event; every pointer is looked at first.
    unsafe {
        checked(driver::rd_kafka_event_error(event))?;
        let answer = driver::rd_kafka_event_DescribeTopics_result(event);
        if answer.is_null() {
            return Err(unanswered());
        }
        let mut count = 0;
        let topics = driver::rd_kafka_DescribeTopics_result_topics(answer, &mut count);
        if topics.is_null() || count != 1 {
            return Err(unanswered());
        }
        let described = *topics;
        let error = driver::rd_kafka_TopicDescription_error(described);
        if !error.is_null() {
            checked(driver::rd_kafka_error_code(error))?;
        }
        let id = driver::rd_kafka_TopicDescription_topic_id(described);
        if id.is_null() {
            return Ok(TopicId::UNKNOWN);
        }
        let half = |bits: i64| u128::from(bits as u64);
        let high = half(driver::rd_kafka_Uuid_most_significant_bits(id));
        let low = half(driver::rd_kafka_Uuid_least_significant_bits(id));
        Ok(TopicId::of(high << 64 | low))
    }
}

fn checked(code: driver::rd_kafka_resp_err_t) -> Result<(), BrokerError> {
    match code {
        driver::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
        code => Err(KafkaError::AdminOp(code.into()).into()),
    }
}

fn unanswered() -> BrokerError {
    BrokerError::Passing("the broker does not tell the topic's id".into())
}

/// Something of the driver's that must be given back.
struct Owned<T> {
    pointer: NonNull<T>,
    give_back: unsafe extern "C" fn(*mut T),
}

impl<T> Owned<T> {
    fn new(
        pointer: *mut T,
        give_back: unsafe extern "C" fn(*mut T),
    ) -> Result<Owned<T>, BrokerError> {
        let pointer = NonNull::new(pointer).ok_or_else(unanswered)?;
        Ok(Owned { pointer, give_back })
    }

    fn pointer(&self) -> *mut T {
        self.pointer.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: by `new` it is the pointer's own function, and nobody else calls it.
        unsafe { (self.give_back)(self.pointer.as_ptr()) }
    }
}
