package org.apache.spark.sql.redisstate.system

import java.io.InputStream
import java.nio.file.{Files, Path}
import java.util.concurrent.ConcurrentHashMap

import org.apache.xbean.asm9.{ClassReader, ClassVisitor, ClassWriter, MethodVisitor, Opcodes}

/**
 * Loads the adapter anew, so that everything static in it exists once for each process that is
 * played; Spark is shared.
 *
 * @param mutants a folder of classes and scripts that take the place of the adapter's
 */
final class ProcessLoader(parent: ClassLoader, mutants: Option[Path]) extends ClassLoader(parent) {
  import ProcessLoader._

  override protected def loadClass(name: String, resolve: Boolean): Class[_] =
    if (!isOwn(name)) super.loadClass(name, resolve)
    else
      getClassLoadingLock(name).synchronized {
        Option(findLoadedClass(name)).getOrElse {
          val file = name.replace('.', '/') + ".class"
          val bytes =
            mutants.map(_.resolve(file)).filter(Files.exists(_)).fold(original(file))(own =>
              rewired(Files.readAllBytes(own)))
          defineClass(name, bytes, 0, bytes.length)
        }
      }

  override def getResourceAsStream(name: String): InputStream =
    mutants.map(_.resolve(name)).filter(Files.exists(_)).fold(super.getResourceAsStream(name))(
      Files.newInputStream(_))

  private def original(file: String): Array[Byte] = known.computeIfAbsent(
    file,
    _ => {
      val in = parent.getResourceAsStream(file)
      if (in == null) throw new ClassNotFoundException(file)
      try rewired(in.readAllBytes())
      finally in.close()
    })
}

private object ProcessLoader {
  private val Own = Seq("org.redisstate.", "org.apache.spark.sql.redisstate.")
  private val Shared = "org.apache.spark.sql.redisstate.system."
  private val Body = "org.apache.spark.sql.redisstate.system.Process"
  private val known = new ConcurrentHashMap[String, Array[Byte]]

  private def isOwn(name: String): Boolean = Own.exists(name.startsWith(_)) &&
    (!name.startsWith(Shared) || name.startsWith(Body) && !name.startsWith(Body + "Loader"))

  private val Executors = "java/util/concurrent/Executors"
  private val Replacement = "org/apache/spark/sql/redisstate/system/Pools"
  private val Makers =
    Set("newFixedThreadPool", "newSingleThreadExecutor", "newSingleThreadScheduledExecutor")

  private val Registry = "org/redisstate/core/protocol/RunRegistry"
  private val WorkerClass = "org/apache/spark/sql/redisstate/system/Worker"
  private val Listing = "listing"

  /** Pools come from [[Pools]], and a thread can be held where it begins to list a checkpoint. */
  private def rewired(bytes: Array[Byte]): Array[Byte] = {
    val writer = new ClassWriter(0)
    val reader = new ClassReader(bytes)
    reader.accept(
      new ClassVisitor(Opcodes.ASM9, writer) {
        override def visitMethod(
            access: Int,
            name: String,
            descriptor: String,
            signature: String,
            exceptions: Array[String]): MethodVisitor =
          new MethodVisitor(
            Opcodes.ASM9,
            super.visitMethod(access, name, descriptor, signature, exceptions)) {
            override def visitCode(): Unit = {
              super.visitCode()
              if (reader.getClassName == Registry && name == "enter") {
                super.visitLdcInsn(Listing)
                super.visitMethodInsn(
                  Opcodes.INVOKESTATIC,
                  WorkerClass,
                  "at",
                  "(Ljava/lang/String;)V",
                  false)
              }
            }
            override def visitMethodInsn(
                opcode: Int,
                owner: String,
                name: String,
                descriptor: String,
                isInterface: Boolean): Unit = {
              val pools = owner == Executors && Makers(name) && descriptor.contains("ThreadFactory")
              super.visitMethodInsn(
                opcode,
                if (pools) Replacement else owner,
                name,
                descriptor,
                isInterface)
            }
          }
      },
      0
    )
    writer.toByteArray
  }
}
