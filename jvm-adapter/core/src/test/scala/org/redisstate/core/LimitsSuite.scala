package org.redisstate.core

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.backend.{ClusterTransport, RedisBackend, RedisUrl}
import org.redisstate.core.format._
import org.redisstate.core.protocol.{PartitionClient, ProtocolSettings, RunRegistry, SegmentIo}
import org.redisstate.core.protocol.manifest.{MemoryBound, Retention}
import org.redisstate.core.store.History

/** Numbers that both languages have to share, on the table that the Python package is tested on too. */
final class LimitsSuite extends AnyFunSuite {
  private val ours = Map[String, Long](
    "keyBytesMax" -> SegmentWriter.KeyBytesMax,
    "valueBytesMax" -> SegmentWriter.ValueBytesMax,
    "blockBytesMax" -> Block.RawLengthMax,
    "bucketRows" -> Bucketing.RowsPerBucket,
    "bucketBytes" -> Bucketing.BytesPerBucket,
    "bucketsMax" -> Entry.BucketsMax,
    "bucketPartBytes" -> SegmentWriter.PartBytesMax,
    "bucketPartsMax" -> Header.PartsMax,
    "familyIdMax" -> Header.FamilyIdMax,
    "signingKeyBytesMin" -> BlockSigner.KeyBytesMin,
    "stagedTtlMs" -> ProtocolSettings.StagedTtlMs,
    "droppedTtlMs" -> ProtocolSettings.DroppedTtlMs,
    "deltasMin" -> History.DeltasMin,
    "deltasMax" -> History.DeltasMax,
    "hotRunDeltasMax" -> History.HotRunDeltasMax,
    "hotRunPart" -> MemoryBound.HotRunPart,
    "retainedFieldsMax" -> Retention.FieldsMax,
    "chunkBytesMax" -> SegmentIo.ChunkBytesMax,
    "stagedBytesMax" -> SegmentIo.StagedBytesMax,
    "stagedByScriptMax" -> SegmentIo.StagedByScriptMax,
    "chunkFieldsMax" -> SegmentIo.FieldsMax,
    "acquireTriesMax" -> PartitionClient.AcquireTriesMax,
    "publishTriesMax" -> PartitionClient.PublishTriesMax,
    "redirectsMax" -> ClusterTransport.RedirectsMax,
    "backoffMinMs" -> RedisBackend.BackoffMinMs,
    "backoffMaxMs" -> RedisBackend.BackoffMaxMs,
    "addressesMax" -> RedisUrl.AddressesMax,
    "totalsTtlMs" -> RunRegistry.TotalsTtlMs
  )

  test("each number is that of the table") {
    val table = Vectors.objects(Vectors.read("limits")).map { one =>
      Vectors.text(one, "name") -> one.get("value").getAsLong
    }.toMap
    assert(ours.keySet -- table.keySet == Set.empty)
    ours.foreach { case (name, value) => assert(value == table(name), name) }
    // Those of the module for Spark: `SparkLimitsSuite`.
    assert(
      table.keySet -- ours.keySet ==
        Set("ephemeralKeepMs", "instanceTtlMs", "beatsATtl", "startCheckLimitMs"))
  }
}
