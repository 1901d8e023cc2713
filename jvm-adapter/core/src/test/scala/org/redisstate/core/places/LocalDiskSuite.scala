package org.redisstate.core.places

import java.io.{BufferedReader, IOException, InputStreamReader}
import java.nio.file.{Files, Path}
import java.util.concurrent.Executor
import java.util.concurrent.atomic.AtomicLong

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.{Random, Using}

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.errors.UnavailableException
import org.redisstate.core.format.Place

/** Copies of regions on a local disk, below the readers that check what they are given. */
class LocalDiskSuite extends AnyFunSuite {
  import LocalDiskSuite._

  test("a region is read from its copy, also when its file is gone") {
    onDisk() { played =>
      val (disk, files) = (played.disk, played.files)
      val one = played.region(0, bytes = 20 << 20)
      assert(disk.read(one, 5, 10).isEmpty)
      disk.want(one, files)
      assert(disk.usedBytes == one.bytes && played.copies.size == 1)
      // In ranges of 8 MiB.
      assert(files.reads.size == 3)
      files.delete(one.place.file)
      assert(disk.read(one, 5, 10).get.toSeq == played.bytes(one, 5, 10))
      val end = one.bytes.toInt - 7
      assert(disk.read(one, end, 7).get.toSeq == played.bytes(one, end, 7))
    }
  }

  test("a region in the middle of a file is copied alone") {
    onDisk() { played =>
      val whole = played.region(0, bytes = 1000)
      val inner = RegionId(whole.gen, whole.place.copy(offset = 300, bytes = 200))
      played.disk.want(inner, played.files)
      assert(played.disk.usedBytes == 200)
      assert(played.disk.read(inner, 10, 20).get.toSeq == played.bytes(whole, 310, 20))
      assert(played.disk.read(whole, 310, 20).isEmpty)
    }
  }

  test("two tasks that need a region begin one copy") {
    onDisk(isHeld = true) { played =>
      val one = played.region(0)
      played.disk.want(one, played.files)
      played.disk.want(one, played.files)
      assert(played.disk.read(one, 0, 1).isEmpty)
      played.runAll()
      assert(played.files.reads.size == 1 && played.copies.size == 1)
      assert(played.disk.read(one, 0, 1).nonEmpty)
    }
  }

  for ((fault, damage) <- Seq[(String, Path => Unit)](
      "cut" -> (file => Files.write(file, Array[Byte](1)): Unit),
      "gone" -> (file => Files.delete(file)),
      "a folder" -> { file => Files.delete(file); Files.createDirectory(file): Unit }
    ))
    test(s"a copy that is $fault is a miss, and is not made again for a minute") {
      onDisk() { played =>
        val one = played.region(0)
        played.disk.want(one, played.files)
        damage(played.copies.head)
        assert(played.disk.read(one, 50, 10).isEmpty)
        assert(played.disk.usedBytes == 0 && played.copies.isEmpty)
        played.disk.want(one, played.files)
        assert(played.disk.usedBytes == 0)
        played.pass(61)
        played.disk.want(one, played.files)
        assert(played.disk.read(one, 50, 10).nonEmpty)
      }
    }

  test("the copy unused for longest makes way, and one of the last minute stays") {
    onDisk(bytesMax = 250) { played =>
      val disk = played.disk
      val all = (0 to 3).map(played.region(_, bytes = 100))
      val (a, b, c, d) = (all(0), all(1), all(2), all(3))
      def has = all.map(played.isCopied)
      disk.want(a, played.files)
      disk.want(b, played.files)
      disk.want(c, played.files)
      assert(has == Seq(true, true, false, false) && disk.usedBytes == 200)
      played.pass(61)
      assert(disk.read(a, 0, 1).nonEmpty)
      disk.want(d, played.files)
      assert(has == Seq(true, false, false, true) && disk.usedBytes == 200)
      disk.want(played.region(4, bytes = 251), played.files)
      assert(disk.usedBytes == 200 && played.copies.size == 2)
    }
  }

  test("a process that reads more than the disk takes does not copy all the time") {
    onDisk(bytesMax = 250) { played =>
      val all = (0 to 9).map(played.region(_, bytes = 100))
      (1 to 59).foreach { _ =>
        all.foreach { one =>
          if (played.disk.read(one, 0, 1).isEmpty) played.disk.want(one, played.files)
        }
        played.pass(1)
      }
      assert(played.files.reads.size == 2)
    }
  }

  for ((fault, error) <- Seq(
      "does not answer" -> (() => throw new UnavailableException("no answer")),
      "breaks the reader" -> (() => throw new StackOverflowError)))
    test(s"a copy ends halfway when the file system $fault, and leaves nothing") {
      onDisk() { played =>
        val one = played.region(0, bytes = 20 << 20)
        played.files.before = _ => if (played.files.reads.size == 2) error()
        try played.disk.want(one, played.files)
        catch { case _: StackOverflowError => () }
        assert(played.disk.usedBytes == 0 && played.copies.isEmpty)
        played.files.before = _ => ()
        played.pass(61)
        played.disk.want(one, played.files)
        assert(played.disk.read(one, 0, 1).nonEmpty)
      }
    }

  test("a copy that is given up while it is on its way leaves nothing") {
    onDisk() { played =>
      val one = played.region(0, bytes = 20 << 20)
      played.files.before = _ => if (played.files.reads.size == 1) played.disk.drop(one)
      played.disk.want(one, played.files)
      assert(played.files.reads.size == 2)
      assert(played.disk.usedBytes == 0 && played.copies.isEmpty)
    }
  }

  test("a file that is cut where it is read has no copy") {
    onDisk() { played =>
      val one = played.region(0, bytes = 1000)
      played.files.put(one.place.file, new Array[Byte](999))
      played.disk.want(one, played.files)
      assert(played.disk.usedBytes == 0 && played.copies.isEmpty)
    }
  }

  test("a folder that a program removed is made again") {
    onDisk() { played =>
      val (one, two) = (played.region(0), played.region(1))
      played.disk.want(one, played.files)
      played.removeFolder()
      played.disk.want(two, played.files)
      assert(played.disk.read(one, 0, 1).isEmpty && played.disk.read(two, 0, 1).isEmpty)
      assert(played.disk.usedBytes == 0)
      played.pass(61)
      played.disk.want(one, played.files)
      assert(played.disk.read(one, 0, 1).nonEmpty && played.copies.size == 1)
    }
  }

  test("a disk that takes no bytes is off, with its copies") {
    onDisk() { played =>
      val (one, two) = (played.region(0), played.region(1))
      played.disk.want(one, played.files)
      played.breakDisk()
      played.disk.want(two, played.files)
      assert(played.disk.usedBytes == 0)
      played.pass(61)
      played.disk.want(one, played.files)
      assert(played.disk.usedBytes == 0 && played.disk.read(one, 0, 1).isEmpty)
    }
  }

  test("a folder that cannot be made turns the disk off") {
    onDisk(named = "file") { played =>
      val one = played.region(0)
      played.disk.want(one, played.files)
      assert(played.disk.usedBytes == 0 && played.disk.read(one, 0, 1).isEmpty)
      assert(played.files.reads.isEmpty)
    }
  }

  test("the folder of a killed process is removed, and that of a living one stays") {
    inFolder { parent =>
      val (living, itsFolder) = holder(parent)
      val (killed, leftFolder) = holder(parent)
      try {
        killed.destroyForcibly().waitFor()
        assert(Files.exists(leftFolder) && Files.exists(itsFolder))
        val own = DiskFolder.open(parent)
        val second = DiskFolder.open(parent)
        assert(!Files.exists(leftFolder))
        assert(Files.list(itsFolder).count() == 2)
        assert(Files.exists(own.path) && own.path != second.path)
        own.close()
        assert(!Files.exists(own.path) && Files.exists(second.path))
        second.close()
      } finally Seq(living, killed).foreach(_.destroyForcibly().waitFor())
      DiskFolder.open(parent).close()
      assert(children(parent).isEmpty)
    }
  }

  test("links, and what has no lock, lead nowhere else") {
    inFolder { parent =>
      val other = Files.createDirectory(parent.resolve("other"))
      val kept = Files.write(other.resolve("kept"), Array[Byte](1))
      Files.createSymbolicLink(parent.resolve(s"${DiskFolder.Prefix}1-0-a"), other)
      val left = Files.createDirectory(parent.resolve(s"${DiskFolder.Prefix}1-0-b"))
      Files.createSymbolicLink(left.resolve("1.seg"), kept)
      val linked = Files.createDirectory(parent.resolve(s"${DiskFolder.Prefix}1-0-c"))
      Files.createSymbolicLink(linked.resolve(DiskFolder.LockName), kept)
      val inner = Files.createDirectories(parent.resolve(s"${DiskFolder.Prefix}1-0-d/inner"))
      val nested = Files.write(inner.resolve("1.seg"), Array[Byte](1))
      DiskFolder.open(parent).close()
      assert(Files.exists(kept) && Files.exists(linked) && Files.exists(nested))
      assert(!Files.exists(left))
    }
  }

  test("other users cannot look into the folder") {
    inFolder { parent =>
      val folder = DiskFolder.open(parent)
      val rights = Files.getPosixFilePermissions(folder.path).asScala.map(_.name)
      assert(rights == Set("OWNER_READ", "OWNER_WRITE", "OWNER_EXECUTE"))
      folder.close()
    }
  }

  test("the folder with the most space is chosen, and one that is not there never") {
    inFolder { parent =>
      val missing = parent.resolve("missing")
      assert(LocalDisk.roomiest(Seq(missing, parent)) == parent)
      assert(LocalDisk.roomiest(Seq(missing)) == missing)
    }
  }
}

private object LocalDiskSuite {

  private def inFolder(body: Path => Unit): Unit = {
    val folder = Files.createTempDirectory("redis-state-disk-test")
    try body(folder)
    finally Using.resource(Files.walk(folder))(
        _.iterator.asScala.toSeq.reverse.foreach(Files.delete))
  }

  private def children(folder: Path): Seq[Path] =
    Using.resource(Files.list(folder))(_.iterator.asScala.toSeq)

  /** Returns a process, and the folder that it holds. */
  private def holder(parent: Path): (Process, Path) = {
    val command = Seq(
      s"${System.getProperty("java.home")}/bin/java",
      "-Xmx32m",
      "-XX:+UseSerialGC",
      "-cp",
      System.getProperty("java.class.path"),
      "org.redisstate.core.places.DiskHolder",
      parent.toString
    )
    val process = new ProcessBuilder(command: _*)
      .redirectError(ProcessBuilder.Redirect.DISCARD).start()
    Option(new BufferedReader(new InputStreamReader(process.getInputStream)).readLine())
      .fold(throw new IOException("the process ended"))(line => process -> Path.of(line))
  }

  /** @param isHeld whether copies wait for `runAll` */
  private def onDisk(bytesMax: Long = 1L << 30, isHeld: Boolean = false, named: String = "disk")(
      body: Played => Unit): Unit = inFolder { folder =>
    Files.write(folder.resolve("file"), Array[Byte](1))
    val played = new Played(folder.resolve(named), bytesMax, isHeld)
    try body(played)
    finally played.disk.close()
  }

  private final class Played(parent: Path, bytesMax: Long, isHeld: Boolean) {
    private val now = new AtomicLong(Long.MaxValue - 5)
    private val waiting = mutable.Queue.empty[Runnable]
    private val background: Executor =
      work => if (isHeld) waiting.enqueue(work): Unit else work.run()
    private val dice = new Random(11)
    private val contents = mutable.HashMap.empty[RegionId, Array[Byte]]
    val files = new PlayedFiles
    val disk = new LocalDisk(bytesMax, () => parent, () => now.get, background)

    def runAll(): Unit = while (waiting.nonEmpty) waiting.dequeue().run()

    def pass(seconds: Long): Unit = now.addAndGet(seconds * 1000 * 1000 * 1000): Unit

    /** Returns a file of one region. */
    def region(number: Int, bytes: Int = 1000): RegionId = {
      val name = f"0-3-0123456789abcdef/1-${number + 1}-$number%032x.seg"
      val id = RegionId("gen", Place.InFile(name, 0, bytes.toLong, 10))
      contents(id) = dice.nextBytes(bytes)
      files.put(name, contents(id))
      id
    }

    def bytes(id: RegionId, offset: Int, length: Int): Seq[Byte] =
      contents(id).slice(offset, offset + length).toSeq

    def isCopied(id: RegionId): Boolean =
      copies.exists(file => Files.readAllBytes(file).sameElements(contents(id)))

    def copies: Seq[Path] =
      children(parent).flatMap(children).filter(_.getFileName.toString.endsWith(".seg"))

    /** A file is where the folder was. */
    def breakDisk(): Unit = {
      removeFolder()
      Files.delete(parent)
      Files.write(parent, Array[Byte](1)): Unit
    }

    def removeFolder(): Unit =
      children(parent).foreach { own =>
        children(own).foreach(Files.delete)
        Files.delete(own)
      }
  }
}
